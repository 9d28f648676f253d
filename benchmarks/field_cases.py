"""Score the readers on real reports: `python benchmarks/field_cases.py --cases FOLDER` (`--list` shows every miss).

The folder holds the reports, and what is right about each (`field_index.py`). The substance counts:

- a log is *right* when the cause is the first finding, its advice holds the fix, and no other alarm stands
  beside it; *partly right* when the cause is among the first three findings, or the fix is in the advice, or the
  line that tells is shown as not explained; everything else is wrong;
- a *false all-clear* is a report of a failure that is called healthy; a *false alarm* is one on a healthy log;
- an environment is right when verdict and row are, and no error is found beside those expected;
- a table is right when what was expected is read (driver, devices, health, support, load), at least one device
  or the failure was read, and no error is found beside those expected.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from field_index import Case, read_cases

from ascent.environment import checks, display, matrix, reports
from ascent.environment.faults import Diagnosis, diagnose_text
from ascent.environment.finding import Finding
from ascent.environment.inventory import Environment
from ascent.environment.versions import same

Grade = Literal["right", "partly", "wrong"]
_QUOTE = re.compile(r" \S+ says: .*", re.S)  # a message that the answer repeats isn't its own reading


@dataclass(frozen=True)
class Score:
    """What was read of a case. ``rank`` counts the findings from 1, 0: the cause isn't among them."""

    case: Case
    grade: Grade
    misses: tuple[str, ...] = ()
    rank: int = 0
    fix: bool = False
    false_findings: tuple[str, ...] = ()
    all_clear: bool = False
    false_alarm: bool = False


# ---- logs ----------------------------------------------------------------------------------------------------------
def score_log(case: Case) -> Score:
    reading = diagnose_text(case.text)
    alarms = [
        each
        for each in reading.diagnoses
        if each.role not in ("consequence", "beside") and (each.level != "note" or each.fault in case.causes)
    ]
    if case.healthy:
        alarmed = any(each.level != "note" for each in alarms) or reading.verdict in ("fault", "unknown")
        what = alarms[0].fault if alarms else f"{reading.verdict} {[each.text for each in reading.unexplained]}"
        misses: tuple[str, ...] = (f"alarm on a healthy log: {what}",) if alarmed else ()
        if not alarmed and reading.verdict != "healthy":
            return Score(case, "partly", (f"healthy, but called {reading.verdict}",))
        return Score(case, "wrong" if alarmed else "right", misses, false_alarm=alarmed)
    named = [_names_cause(case, each) for each in alarms]
    rank = named.index(True) + 1 if any(named) else 0
    false = tuple(each.fault for each, right in zip(alarms, named, strict=True) if not right and each.level != "note")
    looked_at = alarms[rank - 1] if rank else alarms[0] if alarms else None
    fix = looked_at is not None and _all_in(case.fixes, " ".join((*looked_at.mend, *looked_at.decide)))
    shown = bool(reading.unexplained) and _all_in(case.says, " ".join(each.text for each in reading.unexplained))
    all_clear = reading.verdict == "healthy"
    misses = _log_misses(case, alarms, reading.verdict, rank, fix, false)
    grade: Grade = "wrong"
    if rank == 1 and fix and not false:
        grade = "right"
    elif not all_clear and (1 <= rank <= 3 or (fix and case.fixes) or (shown and case.says)):
        grade = "partly"
    return Score(case, grade, misses, rank, fix, false, all_clear)


def _log_misses(
    case: Case, alarms: Sequence[Diagnosis], verdict: str, rank: int, fix: bool, false: Sequence[str]
) -> tuple[str, ...]:
    misses = []
    if rank != 1:
        first = alarms[0].fault if alarms else verdict
        expected = " or ".join(case.causes or case.says)
        misses.append(f"{first}, expected {expected}" + (f" (is {rank}.)" if rank else ""))
    if not fix:
        misses.append(f"the fix isn't in the advice: {' and '.join(case.fixes)}")
    if false and (rank != 1 or len(false) > 0):
        misses.append(f"also found: {', '.join(false)}")
    return tuple(misses)


def _names_cause(case: Case, found: Diagnosis) -> bool:
    if found.fault in case.causes:
        return True
    own = _QUOTE.sub("", found.cause)
    return found.fault not in case.never and bool(case.says) and _all_in(case.says, f"{found.fault} {own}")


def _all_in(expressions: Iterable[str], text: str) -> bool:
    return all(re.search(each, text, re.I | re.S) for each in expressions)


# ---- environments and tables -----------------------------------------------------------------------------------------
def score_environment(case: Case) -> Score:
    if case.facts:
        return score_facts(case)
    environment = reports.parse(case.text)
    judgement = matrix.judge(environment)
    expected, misses = case.claims, []
    if expected.startswith("yes"):
        wanted = {"fits"}
    elif expected.startswith("no,"):
        wanted = {"differs"}
    elif "not stated" in expected:
        wanted = {"not stated"}
    else:
        wanted = {"no row", "newer"}
    if judgement.kind not in wanted:
        misses.append(f"verdict {judgement.kind}, expected {' or '.join(sorted(wanted))}")
    row = re.search(r"row v([\w.+]+)", expected)
    if row and (judgement.row is None or judgement.row.vllm_ascend != row[1].rstrip(":")):
        misses.append(f"row {judgement.row and judgement.row.vllm_ascend}, expected {row[1]}")
    stated = re.findall(r"([\w-]+) \S+ != (\S+?)(?=;|$)", expected) if expected.startswith("no,") else []
    seen = {(each.component.replace("-", "_"), each.want) for each in judgement.differences}
    misses += [
        f"difference not found: {name} wants {want}"
        for name, want in stated
        if (name.replace("-", "_"), want) not in seen
    ]
    allowed = {"A401"} if expected.startswith("no,") else set()
    if "npu-smi fails" in case.text or "ret is -" in case.text:
        allowed.add("A202")
    return _judged(case, misses, checks.run(environment), allowed, read=_anything_read(environment))


def _anything_read(environment: Environment) -> bool:
    return bool(environment.packages or environment.cann or environment.npu.devices or environment.remarks)


def score_table(case: Case) -> Score:
    if case.facts:
        return score_facts(case)
    environment = reports.parse(case.text)
    found, devices, expected = checks.run(environment), environment.npu.devices, case.claims
    misses, allowed = [], set()
    if (driver := re.search(r"\bdriver (\d[\w.]*)", expected)) and environment.npu.driver != driver[1]:
        misses.append(f"driver {environment.npu.driver!r}, expected {driver[1]}")
    if "no driver version" in expected and environment.npu.driver:
        misses.append("a driver version, expected none")
    count = re.search(r"= (\d+) NPUs|(\d+)x (?:Ascend ?)?[39]|x(\d+) chips|(\d+) devices", expected)
    if count and len(devices) != int(next(number for number in count.groups() if number)):
        misses.append(f"{len(devices)} devices, expected {count[0]}")
    for state in ("Warning", "Alarm", "Critical"):
        said = re.search(rf"NPU (\d+) {state}|health {state}", expected)
        if said:
            allowed.add("A203")
            if not any(each.health.startswith(state) and said[1] in (None, str(each.npu)) for each in devices):
                misses.append(f"health {state} not seen")
    if ("all OK" in expected or expected == "healthy") and any(each.health != "OK" for each in devices):
        misses.append("a device that isn't OK")
    for rule, level, pattern in _CLAIMS:
        if re.search(pattern, expected):
            if not any(each.rule == rule and each.level == level for each in found):
                misses.append(f"no {level} under {rule}")
            allowed |= {rule, "A206"} if rule == "A205" else {rule}
    if re.search(r"310|ProB", " ".join(environment.chips)):
        allowed |= {"A205", "A206"}  # said of the chip whatever the report was about
    used = re.search(r"(\d+)/(\d+) MB used", expected)
    if used and (int(used[1]), int(used[2])) not in {(each.memory_used_mb, each.memory_total_mb) for each in devices}:
        misses.append(f"memory {used[0]} not seen")
    if "blank" in expected and not any(process.name == "" for process in environment.npu.processes):
        misses.append("processes without a name were dropped")
    return _judged(case, misses, found, allowed, read=bool(devices or environment.npu.error))


_CLAIMS = (
    ("A205", "error", r"isn't supported|unsupported|not a GRPO target"),
    ("A205", "ok", r"A[23],? supported|is A2"),
    ("A204", "warning", r"in use|used by|dies 6|MB used"),
    ("A204", "ok", r"\bidle"),
    ("A207", "warning", r"non-contiguous"),
    ("A202", "error", r"dcmi|driver libs"),
)


def _judged(case: Case, misses: list[str], found: Iterable[Finding], allowed: set[str], *, read: bool) -> Score:
    """The score of an environment or a table: nothing missed, something read, no error that isn't expected."""
    errors = tuple(f"{each.rule} {each.what}" for each in found if each.level == "error" and each.rule not in allowed)
    if not read:
        misses = [*misses, "nothing was read"]
    told = (*misses, *(f"false error: {each}" for each in errors))
    grade: Grade = "right" if not told else "partly" if not misses and read else "wrong"
    return Score(case, grade, told, false_findings=errors)


def score_facts(case: Case) -> Score:
    """An environment or a table against the fields of cases.toml. An error is expected where what must be said, the
    verdict or the health asks for it.
    """
    facts, environment = case.facts, reports.parse(case.text)
    found = checks.run(environment)
    said = f"{display.machine(environment)}\n{display.findings(found, everything=True)}"
    said = " ".join(said.split())
    misses = [f"not said: {each}" for each in facts.get("must_say", ()) if not re.search(each, said, re.I)]
    for name, version in facts.get("versions", {}).items():
        read = environment.cann_version if name == "cann" else _version(environment, name)
        if not same(read, version):
            misses.append(f"{name} {read or 'not read'}, is {version}")
    wanted = [str(each) for each in facts.get("must_say", ())]
    allowed = {each.rule for each in found if any(re.search(word, f"{each.what} {each.why}", re.I) for word in wanted)}
    if "devices" in facts:
        misses += _table_facts(facts, environment, found)
        allowed |= {"A203"} if "all OK" not in str(facts.get("health", "")) else set()
        allowed |= {"A205", "A206"} if facts.get("supported") is not True else set()
    return _judged(case, misses, found, allowed, read=_anything_read(environment) or bool(environment.npu.error))


def _version(environment: Environment, name: str) -> str:
    return environment.host.python if name == "python" else environment.version(name.replace("_", "-"))


def _table_facts(facts: Mapping[str, Any], environment: Environment, found: Sequence[Finding]) -> Iterator[str]:
    npu = environment.npu
    health_told = "not in this output" not in str(facts.get("health", ""))
    whole = [
        each
        for each in npu.devices
        if (each.health or not health_told) and (each.memory_total_mb or not facts.get("hbm_total_mb"))
    ]
    if (npu.driver or "") != facts.get("driver", ""):
        yield f"driver {npu.driver!r}, is {facts.get('driver')!r}"
    if len(whole) != facts["devices"]:
        yield f"{len(whole)} devices, are {facts['devices']}"
    models = _listed(facts.get("model", []), len(whole))
    if not all(each.name in str(model) for each, model in zip(whole, models, strict=False) if each.name):
        yield f"models {[each.name for each in whole]}, are {models}"
    for state in ("Warning", "Alarm", "Critical", "Unknown"):
        stated = state.lower() in str(facts.get("health", "")).lower()
        if stated != any(each.health.lower().startswith(state.lower()) for each in npu.devices):
            yield f"health {state} {'not seen' if stated else 'seen'}"
    totals = facts.get("hbm_total_mb")
    if totals and [each.memory_total_mb for each in whole] != _listed(totals, len(whole)):
        yield f"memory {[each.memory_total_mb for each in whole]}, is {totals}"
    if (used := facts.get("hbm_used_mb")) and [each.memory_used_mb for each in whole] != _listed(used, len(whole)):
        yield f"memory in use {[each.memory_used_mb for each in whole]}, is {used}"
    processes = facts.get("processes", 0)
    if len(npu.processes) != (processes if isinstance(processes, int) else len(processes)):
        yield f"{len(npu.processes)} processes, are {processes}"
    judged = {each.level for each in found if each.rule == "A205"}
    if facts.get("supported") is True and judged != {"ok"}:
        yield f"supported, but judged {judged or 'not at all'}"
    if facts.get("supported") not in (True, None, "") and "error" not in judged:
        yield f"not supported, but judged {judged or 'not at all'}"
    if "told" in facts.get("reading", "") and not any(each.rule in ("A603", "A605") for each in found):
        yield "a row that can't be read isn't told"


def _listed(value: Any, count: int) -> list[Any]:
    return list(value) if isinstance(value, list) else [value] * count


KINDS: dict[str, Callable[[Case], Score]] = {"env": score_environment, "npusmi": score_table, "log": score_log}


def score(folder: Path) -> list[Score]:
    """The scores of all cases of a folder, in the order of its index."""
    return [KINDS[case.kind](case) for case in read_cases(folder)]


def summary(scores: Sequence[Score]) -> list[str]:
    """A line for each kind of report, and one for what must not happen."""
    lines = []
    groups = {kind: [each for each in scores if each.case.kind == kind and not each.case.healthy] for kind in KINDS}
    groups["healthy"] = [each for each in scores if each.case.healthy]
    for kind, group in groups.items():
        counts = {grade: sum(each.grade == grade for each in group) for grade in ("right", "partly", "wrong")}
        if not group:
            continue
        line = f"{kind:8}{len(group):4}: {counts['right']} right, {counts['partly']} partly, {counts['wrong']} wrong"
        if kind == "log":
            line += (
                f"; cause first {sum(each.rank == 1 for each in group)}, among three "
                f"{sum(1 <= each.rank <= 3 for each in group)}, fix {sum(each.fix for each in group)}"
            )
        lines.append(f"{line}; false findings {sum(len(each.false_findings) for each in group)}")
    lines.append(
        f"false all-clear: {sum(each.all_clear for each in scores)}; false alarms on healthy logs: "
        f"{sum(each.false_alarm for each in scores)}"
    )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=Path, required=True, help="folder with the cases and cases.toml or INDEX.md")
    parser.add_argument("--list", action="store_true", help="name every case that isn't right, and why")
    arguments = parser.parse_args()
    folder = arguments.cases
    if not any((folder / name).is_file() for name in ("cases.toml", "INDEX.md")):
        print(f"error: neither cases.toml nor INDEX.md in {folder}", file=sys.stderr)
        return 2
    scores = score(folder)
    print("\n".join(summary(scores)))
    if arguments.list:
        for each in scores:
            if each.grade != "right":
                print(f"{each.grade:6} {each.case.name}: {'; '.join(each.misses)}")
    return 0 if all(each.grade == "right" for each in scores) else 1


if __name__ == "__main__":
    sys.exit(main())
