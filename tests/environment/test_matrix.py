from __future__ import annotations

import pytest

from ascent.environment import checks, matrix
from ascent.environment.inventory import CannPart, Environment, Host, NpuSmi, Package


def machine(python: str = "3.11.9", cann: str = "", **packages: str) -> Environment:
    read = {name.replace("_", "-"): version for name, version in packages.items()}
    return Environment(
        origin="report",
        host=Host(python=python),
        packages={name: Package(name, version) for name, version in read.items()},
        cann=(CannPart("toolkit", cann),) if cann else (),
        npu=NpuSmi("read"),
    )


def test_table_is_whole() -> None:
    table = matrix.load()
    assert len({row.vllm_ascend for row in table.rows}) == len(table.rows) >= 36
    assert table.row(table.current) is not None
    assert table.source
    assert table.read


def test_every_row_fits_itself() -> None:
    for row in matrix.load().rows:
        python = "3.10" if "3.10" in row.python or "3.9" in row.python else "3.11"
        environment = machine(
            python,
            row.cann,
            vllm_ascend=row.vllm_ascend,
            vllm=row.vllm[-1],
            torch=row.torch + "+cpu",
            torch_npu=row.torch_npu,
            **({"triton_ascend": row.triton_ascend} if row.triton_ascend else {}),
        )
        judgement = matrix.judge(environment)
        assert (judgement.kind, judgement.row) == ("fits", row)


def test_differences_name_component_and_both_versions() -> None:
    judgement = matrix.judge(
        machine("3.9.18", "8.5.0", vllm_ascend="0.18.0", vllm="0.18.1", torch="2.8.0", torch_npu="2.8.0")
    )
    assert judgement.kind == "differs"
    assert {(each.component, each.have, each.want) for each in judgement.differences} == {
        ("python", "3.9.18", ">= 3.10, < 3.12"),
        ("CANN", "8.5.0", "8.5.1"),
        ("torch", "2.8.0", "2.9.0"),
        ("torch-npu", "2.8.0", "2.9.0.post1+git4c901a4"),
        ("vllm", "0.18.1", "0.18.0"),
    }


@pytest.mark.parametrize(
    ("version", "kind", "row"),
    [
        ("0.18.0", "fits", "0.18.0"),
        ("0.20.2rc1.dev40+gabc", "fits", "0.20.2rc1"),
        ("0.13.0.post1", "fits", "0.13.0"),
        ("0.9.0", "no row", "0.9.0rc2"),
        ("0.12.0", "no row", "0.12.0rc1"),
        ("0.17.0rc2.dev3", "no row", "0.17.0rc1"),
        ("0.24.0rc1", "newer", None),
        ("0.25.1rc1", "newer", None),
        ("1.0.0", "newer", None),
        ("0.13.0rc4.dev0+g12", "fits", "0.13.0rc3"),
    ],
)
def test_place_of_a_release(version: str, kind: str, row: str | None) -> None:
    judgement = matrix.judge(machine(vllm_ascend=version))
    assert (judgement.kind, judgement.row and judgement.row.vllm_ascend) == (kind, row)


def test_without_vllm_ascend_the_rest_decides() -> None:
    fitting = matrix.judge(machine(vllm="0.20.2", torch="2.10.0", torch_npu="2.10.0"))
    assert (fitting.kind, fitting.row and fitting.row.vllm_ascend) == ("not stated", "0.20.2rc1")
    differing = matrix.judge(machine(vllm="0.11.0", torch="2.8.0", torch_npu="2.8.0"))
    assert differing.kind == "differs"
    assert differing.row is not None
    assert differing.row.vllm == ("0.11.0",)


def test_steps_come_in_the_order_in_which_they_must_be_done() -> None:
    environment = machine(
        "3.9",
        "8.3.RC1",
        vllm_ascend="0.18.0",
        vllm="0.17.0",
        torch="2.8.0",
        torch_npu="2.8.0",
        triton_ascend="3.2.0rc4",
    )
    judgement = matrix.judge(environment)
    assert judgement.row is not None
    steps = matrix.steps_onto(judgement.row, environment, judgement.differences)
    keys = ["Python", "install CANN 8.5.1", "source", '"vllm==0.18.0"', '"torch==2.9.0"', "triton-ascend=="]
    places = [next(index for index, step in enumerate(steps) if key in step) for key in keys]
    assert places == sorted(places)
    assert not any("vllm-ascend==" in step for step in steps), "what fits is left alone"


def test_only_what_differs_is_changed() -> None:
    environment = machine(cann="8.5.0", vllm_ascend="0.18.0", vllm="0.18.0", torch="2.9.0", torch_npu="2.9.0.post1")
    judgement = matrix.judge(environment)
    assert judgement.row is not None
    steps = matrix.steps_onto(judgement.row, environment, judgement.differences)
    assert len(steps) == 2
    assert all("CANN" in step or "source" in step for step in steps)


@pytest.mark.parametrize(
    ("trl", "span"),
    [
        ("0.26.2", ">= 0.10.2, <= 0.11.2"),
        ("1.9.0", ">= 0.17.0, <= 0.25.1"),
        ("1.16.3", ">= 0.22.0, <= 0.31.0"),
        ("1.12.0", None),
    ],
)
def test_trl_range(trl: str, span: str | None) -> None:
    assert matrix.trl_range(trl) == span


@pytest.mark.parametrize(
    "environment",
    [
        machine("3.9.18", "7.0.RC1"),
        machine(cann="8.0.RC3", torch="2.1.0", torch_npu="2.1.0.post8"),
        machine(vllm_ascend="0.7.3", vllm="0.7.3"),
    ],
)
def test_stacks_of_old_tutorials_get_a_path(environment: Environment) -> None:
    assert matrix.is_old_stack(environment)
    path = "\n".join(matrix.path_to_current(environment))
    assert "0.23.0.post1" in path
    assert "CANN 9.1.0" in path


def test_current_stack_is_not_old() -> None:
    assert not matrix.is_old_stack(machine(cann="9.1.0", vllm_ascend="0.23.0.post1", torch_npu="2.10.0.post4"))


def test_where_all_else_fits_another_row_vllm_ascend_alone_is_changed() -> None:
    environment = machine(
        "3.11", "8.3.RC1", vllm_ascend="0.11.0", vllm="0.11.0+empty", torch="2.7.1", torch_npu="2.7.1"
    )
    other = matrix.row_of_the_rest(environment)
    assert other is not None
    assert other.vllm_ascend == "0.11.0rc1"
    (finding,) = [each for each in checks.run(environment) if each.rule == "A401"]
    assert '"vllm-ascend==0.11.0rc1"' in finding.mend[-1]
    assert matrix.row_of_the_rest(machine(vllm_ascend="0.11.0", torch="2.7.1")) is None
