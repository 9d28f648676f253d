"""Rules A6: what a pasted report can't tell."""

from __future__ import annotations

from collections.abc import Iterator

from ascent.environment import matrix
from ascent.environment.checks.purpose import Purpose
from ascent.environment.finding import Finding
from ascent.environment.inventory import Environment
from ascent.environment.rules import found


def readable(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """Whether anything was recognised, and which readings are doubtful."""
    if environment.origin != "report":
        return
    stated = environment.packages or environment.host.python or environment.remarks
    npu = environment.npu
    if environment.accelerator == "unknown" and not stated:
        yield found("A603", "warning", "nothing of an Ascend, CUDA or CPU stack was recognised in the text")
    elif not (stated or environment.cann or npu.devices or npu.processes or npu.error or environment.chip):
        what = f"npu-smi {npu.driver}".strip() + ": no device could be read from its output"
        yield found("A603", "warning", what, evidence=npu.unread[:4])
    if npu.unread and (npu.devices or npu.processes or stated):
        what = f"{len(npu.unread)} of the rows of npu-smi's table can't be read, so what they say isn't judged"
        yield found("A605", "warning", what, evidence=npu.unread[:4])
    for remark in environment.remarks:
        number = "A601" if remark.startswith("upstream collect_env") else "A602"
        if "shadows the package" not in remark:
            yield found(number, "note", remark)
    doubtful = [package for package in environment.packages.values() if not package.sure]
    if doubtful:
        read = ", ".join(f"{package.name} {package.version}" for package in doubtful)
        yield found(
            "A602",
            "note",
            f"read from running text, so unsure: {read}",
            evidence=[package.source for package in doubtful[:3]],
            sure=False,
        )
    software = environment.packages or environment.cann
    if environment.accelerator == "npu" and software and not environment.version("vllm-ascend"):
        what = "the version of vllm-ascend isn't stated"
        if environment.cann_version:
            rows = matrix.rows_with_cann(environment.cann_version)
            named = ", ".join(rows) if rows else "none"
            what += f"; rows with CANN {environment.cann_version}: {named}"
        yield found("A604", "note", what)


CHECKS = (readable,)
