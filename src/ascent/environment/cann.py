"""Where CANN, NNAL and the driver are installed, and which versions their own files name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ascent.environment.inventory import CannPart

_HOMES = ("usr/local/Ascend", "opt/Ascend", "usr/local/ascend", "root/Ascend")
_VERSION_LINE = re.compile(r"^[ \t]*(?:version|Version)\s*[=:]\s*\[?v?([0-9][\w.]*)", re.M)
_NAMED_LINE = re.compile(r"^[ \t]*Ascend-cann-(?:atb|nnal)\s*[:=]\s*v?([0-9][\w.]*)", re.M | re.I)
_CONFIG_LINE = re.compile(r"^[ \t]*\w*(?:toolkit|runtime)\w*version\s*=\s*\[?[^\n\]]*?:?v?(\d[\w.]*)\]?\s*$", re.M)
_IN_PATH = re.compile(r"(?:cann-|ascend-toolkit/|atb/)v?(\d+\.\d[\w.]*)", re.I)


def find(root: Path, variables: Mapping[str, str]) -> tuple[CannPart, ...]:
    """Every toolkit, kernels package and NNAL under the usual places and those that the variables name.

    ``root`` is `/`, or the top of a test tree. Each install is listed once, whatever links lead to it.
    """
    parts: list[CannPart] = []
    seen: set[Path] = set()
    for folder in _toolkits(root, variables):
        real = _resolved(folder)
        if real in seen:
            continue
        seen.add(real)
        version = toolkit_version(folder)
        if not version:
            continue
        parts.append(CannPart("toolkit", version, str(folder), _is_sourced(root, folder, variables)))
        parts += [
            CannPart("kernels", _kernels_version(folder) or version, str(folder), chip=chip)
            for chip in _kernels(folder)
        ]
    for folder in _nnals(root, variables):
        real = _resolved(folder)
        if real in seen:
            continue
        seen.add(real)
        version = _nnal_version(folder)
        if version:
            parts.append(CannPart("nnal", version, str(folder), _is_sourced(root, folder, variables)))
    return tuple(parts)


def driver_version(root: Path) -> str:
    """Driver version from its own `version.info`, empty when there is none."""
    return _first(_VERSION_LINE, *(home / "driver/version.info" for home in _homes(root)))


def firmware_version(root: Path) -> str:
    """Firmware version from its own `version.info`, empty when there is none."""
    return _first(_VERSION_LINE, *(home / "firmware/version.info" for home in _homes(root)))


def toolkit_version(folder: Path) -> str:
    """Version of the toolkit in a folder: install file, then configuration, then the folder's name."""
    infos = [*_glob(folder, "*-linux/ascend_toolkit_install.info"), folder / "ascend_toolkit_install.info"]
    infos += [
        *_glob(folder, "*-linux/ascend_cann_install.info"),
        *_glob(folder, "share/info/*/version.info")[:1],
    ]
    return (
        _first(_VERSION_LINE, *infos) or _first(_CONFIG_LINE, folder / "version.cfg") or _from_path(_resolved(folder))
    )


def _homes(root: Path) -> list[Path]:
    install = _read(root / "etc/ascend_install.info")
    stated = re.findall(r"^(?:Driver|Firmware)_Install_Path_Param=(/\S+)", install, re.M)
    homes = [root / home for home in _HOMES] + [root / path.lstrip("/") for path in stated]
    return list(dict.fromkeys(homes))


def _toolkits(root: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        if variables.get(name):
            yield _under(root, variables[name])
    for home in _all_homes(root, variables):
        yield from _glob(home, "cann-*")
        yield from (home / "cann", home / "ascend-toolkit/latest")
        yield from _glob(home, "ascend-toolkit/[0-9]*")


def _nnals(root: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    if variables.get("ATB_HOME_PATH"):
        # .../nnal/atb/8.3.RC1/atb/cxx_abi_1 names the flavour; the version stands two folders above.
        path = _under(root, variables["ATB_HOME_PATH"])
        yield path.parent.parent if path.name.startswith("cxx_abi") else path
    for home in _all_homes(root, variables):
        yield home / "nnal/atb/latest"
        yield from _glob(home, "nnal/atb/[0-9]*")
        yield from _glob(home, "nnal-*/atb/latest")


def _all_homes(root: Path, variables: Mapping[str, str]) -> list[Path]:
    homes = _homes(root)
    if variables.get("HOME"):
        homes.append(_under(root, variables["HOME"]) / "Ascend")
    return homes


def _under(root: Path, path: str) -> Path:
    return Path(path) if root == Path("/") else root / path.lstrip("/")


def _is_sourced(root: Path, folder: Path, variables: Mapping[str, str]) -> bool:
    """Whether the shell's variables lead into this install."""
    installs = {folder, _resolved(folder)}
    names = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ATB_HOME_PATH", "LD_LIBRARY_PATH")
    for entry in ":".join(variables.get(name, "") for name in names).split(":"):
        if not entry:
            continue
        place = _under(root, entry)
        if installs & {place, *place.parents, *_resolved(place).parents, _resolved(place)}:
            return True
    return False


def _kernels(folder: Path) -> list[str]:
    for pattern in (
        "opp/built-in/op_impl/ai_core/tbe/kernel/ascend*",
        "*-linux/opp/built-in/op_impl/ai_core/tbe/kernel/ascend*",
    ):
        names = [path.name.removeprefix("ascend") for path in _glob(folder, pattern) if path.is_dir()]
        if names:
            return sorted(names)
    return []


def _kernels_version(folder: Path) -> str:
    return _first(_VERSION_LINE, folder / "opp_kernel/version.info", folder / "opp/version.info")


def _nnal_version(folder: Path) -> str:
    info = folder / "version.info"
    return _first(_NAMED_LINE, info) or _first(_VERSION_LINE, info) or _from_path(_resolved(folder))


def _from_path(path: Path) -> str:
    match = _IN_PATH.search(str(path))
    return match[1] if match else ""


def _first(pattern: re.Pattern[str], *files: Path) -> str:
    for file in files:
        if match := pattern.search(_read(file)):
            return match[1].rstrip(".")
    return ""


def _read(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            return stream.read(65536)
    except OSError:
        return ""


def _glob(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path
