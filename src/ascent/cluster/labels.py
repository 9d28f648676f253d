"""What people call nodes, where several may have one address (as several of Ray's nodes on one machine do)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ascent.cluster.nodes import Node


def labelled(nodes: Sequence[Node]) -> dict[str, Node]:
    """Nodes by address and name, with the start of their ids where others have the same, in their order."""
    times = Counter(map(str, nodes))
    return {str(node) if times[str(node)] == 1 else f"{node} {node.id[:8]}": node for node in nodes}
