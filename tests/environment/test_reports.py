"""Pasted reports: every form in which people state what they run, and no text on which the reader fails."""

from __future__ import annotations

import npu_tables
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ascent.environment import checks, matrix, reports

COLLECT_ENV = """Collecting environment information...
PyTorch version: 2.10.0+cpu
Is debug build: False

OS: openEuler 24.03 (LTS-SP2) (aarch64)
Libc version: glibc-2.38

Python version: 3.11.15 (main, May 13 2026, 07:58:57) [GCC 12.3.1] (64-bit runtime)
Python platform: Linux-5.10.0-136.49.0-aarch64-with-glibc2.38

Versions of relevant libraries:
[pip3] numpy==1.26.4
[pip3] torch==2.10.0+cpu
[pip3] torch_npu==2.10.0.post4
[pip3] transformers==5.5.4
[pip3] triton-ascend==3.2.2
vLLM Version: 0.23.0 (git sha: 0fc695fc6, date: 20260803)
vLLM Ascend Version: 0.23.0.post1

ENV Variables:
ASCEND_TOOLKIT_HOME=/usr/local/Ascend/cann-9.1.0
VLLM_ASCEND_ENABLE_NZ=0

NPU:
{table}
CANN:
package_name=Ascend-cann-toolkit
version=9.1.0
innerversion=V100R001C21
arch=aarch64
path=/usr/local/Ascend/cann-9.1.0/aarch64-linux
"""


def versions(text: str) -> dict[str, str]:
    environment = reports.parse(text)
    stated = {name: package.version for name, package in environment.packages.items()}
    return {**stated, **({"CANN": environment.cann_version} if environment.cann_version else {})}


def test_vllm_ascend_collect_env_is_read_whole() -> None:
    rows = [(index, "910B2", "OK", 0, None, "0000:C1:00.0", 0, 3400, 65536) for index in range(4)]
    environment = reports.parse(COLLECT_ENV.replace("{table}", npu_tables.hbm_table(rows)))
    assert versions(COLLECT_ENV) == {
        "torch": "2.10.0+cpu",
        "numpy": "1.26.4",
        "torch-npu": "2.10.0.post4",
        "transformers": "5.5.4",
        "triton-ascend": "3.2.2",
        "vllm": "0.23.0",
        "vllm-ascend": "0.23.0.post1",
        "CANN": "9.1.0",
    }
    assert environment.host.python == "3.11.15"
    assert environment.host.os_name.startswith("openEuler")
    assert environment.variables["VLLM_ASCEND_ENABLE_NZ"] == "0"
    assert len(environment.npu.devices) == 4
    assert all(package.sure for package in environment.packages.values())
    judgement = matrix.judge(environment)
    assert (judgement.kind, judgement.row and judgement.row.vllm_ascend) == ("fits", "0.23.0.post1")
    assert not [finding for finding in checks.run(environment) if finding.level in ("error", "warning")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "vllm 0.18.0\nvllm_ascend 0.18.0\ntorch 2.9.0\n",
            {"vllm": "0.18.0", "vllm-ascend": "0.18.0", "torch": "2.9.0"},
        ),
        (
            "vLLM：0.11.0，vLLM-Ascend：0.11.0.rc3，CANN：8.3.RC2",
            {"vllm": "0.11.0", "vllm-ascend": "0.11.0.rc3", "CANN": "8.3.RC2"},
        ),
        (
            "| vLLM | `0.13.0` |\n| vllm-ascend | 0.13.0 |\n| CANN | 8.5.0 |",
            {"vllm": "0.13.0", "vllm-ascend": "0.13.0", "CANN": "8.5.0"},
        ),
        (
            "vllm==0.9.1+empty  torch_npu==2.5.1.post1.dev20250619",
            {"vllm": "0.9.1+empty", "torch-npu": "2.5.1.post1.dev20250619"},
        ),
        ("用的是vllm0.9.1和torch2.5.1", {"vllm": "0.9.1", "torch": "2.5.1"}),
        ("cann 8.1rc1, pytorch-version 2.5.1", {"CANN": "8.1.RC1"}),
        ("Ascend-cann-toolkit_8.2.RC1_linux-aarch64.run", {"CANN": "8.2.RC1"}),
        ("source /usr/local/Ascend/ascend-toolkit/8.0.0/set_env.sh", {"CANN": "8.0.0"}),
        ("vllm/vllm-ascend 0.15.0 rc1", {"vllm-ascend": "0.15.0rc1"}),
        ("docker pull quay.io/ascend/vllm-ascend:v0.19.1rc1-a3-openeuler", {"vllm-ascend": "0.19.1rc1"}),
        (
            "Successfully installed torch-2.9.0 torch-npu-2.9.0 vllm-ascend-0.16.0rc1",
            {"torch": "2.9.0", "torch-npu": "2.9.0", "vllm-ascend": "0.16.0rc1"},
        ),
        ("pip install torch==2.7.1\npip install torch==2.9.0", {"torch": "2.9.0"}),
        ("transformers>=4.57,<5", {}),
        (
            "vLLM Ascend main v0.9.0rc1.dev0531\nvLLM v0.9.0\n",
            {"vllm-ascend": "0.9.0rc1.dev0531", "vllm": "0.9.0"},
        ),
        ("vllm-ascend版本：0.9.1\nCANN版本：8.2.RC1\n", {"vllm-ascend": "0.9.1", "CANN": "8.2.RC1"}),
        ("{'vllm': '0.11.0', \"torch\": \"2.7.1\"}", {"vllm": "0.11.0", "torch": "2.7.1"}),
        ("vllm-0.11.0+empty-py3-none-any.whl", {"vllm": "0.11.0+empty"}),
        ("- torch / torch_npu: 2.9.0 / 2.9.0.post2", {"torch": "2.9.0", "torch-npu": "2.9.0.post2"}),
        ("vLLM/vLLM-Ascend: 0.18.0/0.18.0rc1", {"vllm": "0.18.0", "vllm-ascend": "0.18.0rc1"}),
    ],
)
def test_forms_of_versions(text: str, expected: dict[str, str]) -> None:
    assert versions(text) == expected


@pytest.mark.parametrize(
    ("text", "chip"),
    [
        ("NPU type: Ascend910B3", "910B3"),
        ("Atlas 800T A2, 8x 910B3 64G", "910B3"),
        ("hardware: Ascend A3", "A3"),
        ("SocVersion = Ascend910B2", "910B2"),
        ("310P3 card", "310P3"),
        ("port 9101, 2910B", ""),
    ],
)
def test_chips_in_text(text: str, chip: str) -> None:
    assert reports.parse(text).chip == chip


@pytest.mark.parametrize(
    "text", ["HDK 25.2.1", "driver version: 25.2.1", "驱动版本：25.2.1", "Software Version : 25.2.1"]
)
def test_drivers_in_text(text: str) -> None:
    assert reports.parse(text).npu.driver == "25.2.1"


def test_resolver_conflict_tells_what_is_installed() -> None:
    read = versions("vllm-ascend 0.11.0rc3 requires torch==2.7.1, but you have torch 2.8.0 which is incompatible.\n")
    assert read == {"vllm-ascend": "0.11.0rc3", "torch": "2.8.0"}


def test_what_a_package_depends_on_isnt_installed() -> None:
    conflict = "    vllm 0.11.0 depends on torch==2.8.0\n    vllm-ascend 0.11.0rc3 depends on torch==2.7.1\n"
    assert versions(conflict) == {"vllm": "0.11.0", "vllm-ascend": "0.11.0rc3"}


def test_numpy_two_is_judged_by_the_row_where_cann_isnt_stated() -> None:
    found = checks.run(reports.parse("vllm-ascend 0.10.1rc1\nvllm 0.10.1\nnumpy 2.0.2\n"))
    (finding,) = [each for each in found if each.rule == "A406"]
    assert not finding.sure
    assert not [each for each in checks.run(reports.parse("vllm-ascend 0.18.0\nnumpy 2.0.2\n")) if each.rule == "A406"]


def test_own_output_counts_more_than_running_text() -> None:
    text = "I first tried vllm 0.9.0 here.\nvLLM Version: 0.11.0\n"
    assert versions(text) == {"vllm": "0.11.0"}


def test_contradiction_is_marked_unsure() -> None:
    environment = reports.parse("torch==2.7.1\ntorch==2.8.0\n")
    assert not environment.packages["torch"].sure
    assert any("2.8.0" in remark for remark in environment.remarks)
    assert any(finding.rule == "A602" for finding in checks.run(environment))


def test_snapshot_of_main_is_no_release() -> None:
    environment = reports.parse("vllm_ascend: main(20260601)\nvllm: 0.20.2\ntorch_npu: 2.10.0\n")
    assert "vllm-ascend" not in environment.packages
    assert matrix.judge(environment).kind == "not stated"


def test_upstream_collect_env_says_nothing_of_npus() -> None:
    found = checks.run(
        reports.parse("PyTorch version: 2.10.0+cpu\nIs CUDA available: False\nGPU models and configuration: No CUDA\n")
    )
    assert [finding.rule for finding in found if finding.level == "note"] == ["A601"]
    assert not [finding for finding in found if finding.level == "error"]


def test_crashed_collect_env_names_the_folder() -> None:
    found = checks.run(reports.parse("ImportError: cannot import name '__version__' from 'vllm' (unknown location)\n"))
    assert any(finding.rule == "A421" and "'vllm'" in finding.what for finding in found)


def test_several_reports_in_one_file_are_put_together() -> None:
    rows = [(0, "910B3", "Critical", 0, None, "0000:C1:00.0", 0, 3400, 65536)]
    text = (
        "$ npu-smi info\n"
        + npu_tables.hbm_table(rows, version="24.1.0")
        + "$ pip list\nvllm 0.11.0\nvllm_ascend 0.11.0rc1\ntorch 2.8.0\n"
    )
    found = checks.run(reports.parse(text))
    assert {"A203", "A401"} <= {finding.rule for finding in found if finding.level == "error"}


def test_nothing_recognised_is_said() -> None:
    assert [finding.rule for finding in checks.run(reports.parse("hello"))] == ["A603"]


@settings(max_examples=150)
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=400))
@example("vllm:" + "9" * 400)
@example("torch==" + "1." * 300)
@example("| 0 910B3 | OK | x |\n| 0 | 0000:C1:00.0 | 0 / 0 999999999999999999999 / 1 |")
@example("CANN:\nversion=\nASCEND_TOOLKIT_HOME=/cann-.")
def test_no_text_makes_the_reader_fail(text: str) -> None:
    checks.run(reports.parse(text))


@settings(max_examples=100)
@given(
    st.lists(
        st.sampled_from(
            [
                "vllm",
                "vllm-ascend",
                "torch",
                "CANN",
                "==",
                ":",
                "|",
                " ",
                "\n",
                "0.11.0",
                "rc1",
                ".dev",
                "+g12",
                "8.3.RC1",
                "npu-smi",
                "910B3",
                "OK",
                "-8005",
                "main(1)",
                "requires",
                "but you have",
                "pip install",
                "[pip3]",
                "，",
                "：",
            ]
        ),
        max_size=30,
    ).map("".join)
)
def test_no_mixture_of_the_fields_own_words_makes_it_fail(text: str) -> None:
    checks.run(reports.parse(text))
