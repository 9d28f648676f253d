"""Names of the vendor's status codes, from its own headers and tables: writes `names_*.toml`.

    python scripts/vendor_codes.py src/ascent/environment/data/codes FILE...

The files are those of a release: `rt_error_codes.h` of the torch_npu wheel, `acl_base.h` or `acl_base_rt.h`,
`hccl_types.h`,
`aclnn_base.h`, `dcmi_interface_api.h`, and the sources or JSON files that hold CANN's `error_info_list` (of runtime,
GE, HCCL, the operators). A name is made from the identifier that stands beside the code; what to do is written by
hand in `families.toml`, for the codes that people meet.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

_CONSTANT = re.compile(r"\b(?:ACL_ERROR_(?:RT_|GE_)?|ACLNN_ERR_)(\w+)\s*=?\s*(\d{6})\b")
_RESULT = re.compile(r"\bHCCL_E_(\w+)\s*=\s*(\d+)")
_DCMI = re.compile(r"\bDCMI_ERR_CODE_(\w+)\s+\(DCMI_ERROR_CODE_BASE\s*-\s*(\d+)\)")
_ENTRY = re.compile(r"\{[^{}]*?\"ErrCode\"\s*:\s*\"(\w+)\"[^{}]*", re.S)
_TITLE = re.compile(r"\"errTitle\"\s*:\s*\"([^\"]*)\"")


def names(text: str) -> Iterator[tuple[str, str]]:
    """(code, name) of every code that a file states."""
    for name, code in _CONSTANT.findall(text):
        yield code, _words(name)
    for name, code in _RESULT.findall(text):
        yield f"HCCL {code}", _words(name)
    for name, number in _DCMI.findall(text):
        yield f"-{8000 + int(number)}", _words(name)
    for entry in _ENTRY.finditer(text):
        title = _TITLE.search(entry[0])
        if title:
            yield entry[1], _words(title[1])


def _words(identifier: str) -> str:
    kind, _, rest = identifier.strip().replace("-", "_").lower().partition("_error_")
    text = f"{kind} error: {rest}" if rest else kind
    return " ".join(text.replace("_", " ").split())


# File -> what its codes begin with; the first that fits.
GROUPS = {
    "names_status.toml": ("1", "2", "3", "5", "-", "HCCL"),
    "names_graph.toml": ("E1", "E2", "E3", "E4"),
    "names_operators.toml": ("EZ", "E5", "E6", "E7", "E8", "E9"),
    "names_others.toml": ("",),
}


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder, *files = arguments
    found: dict[str, str] = {}
    for file in files:
        for code, name in names(Path(file).read_text("utf-8", errors="replace")):
            found.setdefault(code, name)
    left = dict(sorted(found.items()))
    for group, heads in GROUPS.items():
        chosen = {code: left.pop(code) for code in list(left) if code.startswith(heads)}
        lines = [
            "# Made by scripts/vendor_codes.py from the vendor's headers and tables: code -> its name there.",
            "",
            "[names]",
        ]
        lines += [f'"{code}" = "{name}"' for code, name in chosen.items()]
        Path(folder, group).write_text("\n".join(lines) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
