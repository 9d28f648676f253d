"""How long what runs on a node may go on without its driver, and how long the driver waits for a node.

The driver asks every agent how it is once a second, and each question renews the agent's lease. A node that is cut off
ends its processes when the lease runs out, so nothing of it computes any more when the driver gives it up for lost.
What may still be there writes nothing (`ascent.tracking.attempts`).
"""

from __future__ import annotations

BEAT = 1.0  # seconds between two questions
LEASE = 12.0  # seconds after the last question for which an agent's processes may run
_ENDING = 6.0  # in which the keeper has ended them: it asks, and kills 5 seconds later
LOST = LEASE + _ENDING  # seconds without an answer after which a node is given up
BROKEN = 3.0  # seconds for which connections to an agent may be refused: a process that is gone refuses them at once
COMING = 90.0  # seconds that an agent may take to come, once there is room for it
