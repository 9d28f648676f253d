"""Inspection on trees of files that look like installed machines."""

# ruff: noqa: E501

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import npu_tables
import pytest

from ascent.environment import cann, checks, machine


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def install_toolkit(home: Path, folder: str, version: str, chip: str = "ascend910b") -> Path:
    toolkit = home / folder
    write(
        toolkit / "aarch64-linux/ascend_toolkit_install.info",
        f"package_name=Ascend-cann-toolkit\nversion={version}\narch=aarch64\n",
    )
    (toolkit / f"opp/built-in/op_impl/ai_core/tbe/kernel/{chip}").mkdir(parents=True)
    return toolkit


def install_package(site: Path, name: str, release: str, /, **files: str) -> None:
    write(
        site / f"{name}-{release}.dist-info/METADATA",
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n",
    )
    for file, text in files.items():
        write(site / name / f"{file}.py", text)


@pytest.fixture
def npu_machine(tmp_path: Path) -> Path:
    """An A2 machine with CANN 9.1.0, NNAL and driver, as the files of such machines are laid out."""
    home = tmp_path / "usr/local/Ascend"
    install_toolkit(home, "cann-9.1.0", "9.1.0")
    write(home / "nnal/atb/latest/version.info", "Ascend-cann-atb : 9.1.0\n")
    write(home / "driver/lib64/driver/libascend_hal.so")
    write(tmp_path / "usr/local/dcmi/libdcmi.so")
    write(home / "driver/version.info", "Version=25.5.1\nascendhal_version=7.35\n")
    write(home / "firmware/version.info", "Version=7.8.0.1.220\n")
    write(tmp_path / "etc/ascend_install.info", "Driver_Install_Path_Param=/usr/local/Ascend\n")
    write(tmp_path / "etc/os-release", 'PRETTY_NAME="openEuler 24.03"\n')
    write(tmp_path / ".dockerenv")
    for node in ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc"):
        write(tmp_path / "dev" / node)
    write(tmp_path / "usr/local/bin/npu-smi")
    site = tmp_path / "site"
    install_package(site, "torch", "2.10.0", version="cuda: Optional[str] = None\n")
    install_package(site, "torch_npu", "2.10.0.post4")
    install_package(site, "vllm_ascend", "0.23.0.post1", _build_info="__device_type__ = 'A2'\n")
    install_package(site, "vllm", "0.23.0")
    return tmp_path


def answering(output: str, status: int = 0) -> machine.Run:
    def run(command: Sequence[str], seconds: float) -> tuple[int, str] | None:
        return (status, output) if command[0].endswith("npu-smi") else None

    return run


def sourced() -> dict[str, str]:
    return {
        "ASCEND_HOME_PATH": "/usr/local/Ascend/cann-9.1.0",
        "LD_LIBRARY_PATH": "/usr/local/Ascend/cann-9.1.0/lib64:/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1/lib",
        "http_proxy": "http://user:secret@proxy:3128",
        "PATH": "/bin",
    }


def test_whole_machine(npu_machine: Path) -> None:
    rows = [(index, "910B3", "OK", 0, None, "0000:C1:00.0", 0, 3400, 65536) for index in range(2)]
    environment = machine.inspect(
        npu_machine,
        sourced(),
        answering(npu_tables.hbm_table(rows, version="25.5.1")),
        [str(npu_machine / "site")],
    )
    assert environment.accelerator == "npu"
    assert (environment.npu.driver, environment.firmware, environment.cann_version) == (
        "25.5.1",
        "7.8.0.1.220",
        "9.1.0",
    )
    assert {(part.part, part.version, part.chip) for part in environment.cann} == {
        ("toolkit", "9.1.0", ""),
        ("kernels", "9.1.0", "910b"),
        ("nnal", "9.1.0", ""),
    }
    assert all(part.sourced for part in environment.cann if part.part != "kernels")
    assert environment.version("vllm-ascend") == "0.23.0.post1"
    assert (environment.build_target, environment.torch_cuda) == ("A2", "")
    assert environment.host.device_nodes == (
        "davinci0",
        "davinci1",
        "davinci_manager",
        "devmm_svm",
        "hisi_hdc",
    )
    assert environment.host.os_name == "openEuler 24.03"
    assert environment.host.container
    assert "PATH" not in environment.variables
    errors = [finding for finding in checks.run(environment) if finding.level == "error"]
    assert not [finding for finding in errors if finding.rule[:2] in ("A2", "A3", "A4")], errors


def test_passwords_of_proxies_arent_kept(npu_machine: Path) -> None:
    environment = machine.inspect(npu_machine, sourced(), answering(""), [])
    assert environment.variables["http_proxy"] == "http://proxy:3128"


def test_installed_but_not_sourced(npu_machine: Path) -> None:
    environment = machine.inspect(npu_machine, {}, answering("", 1), [str(npu_machine / "site")])
    found = {finding.rule: finding for finding in checks.run(environment) if finding.level == "error"}
    assert {"A302", "A304", "A202"} <= set(found)
    assert "set_env.sh" in found["A302"].mend[0]


def test_npu_smi_that_hangs_or_fails(npu_machine: Path) -> None:
    for status, output in (
        (124, "npu-smi: no answer within 10 s"),
        (255, "dcmi module initialize failed. ret is -8005\n"),
    ):
        environment = machine.inspect(npu_machine, {}, answering(output, status), [])
        assert environment.npu.state == "failed"
        assert environment.npu.error
        assert environment.npu.driver == "25.5.1", "the driver's own file still tells its version"


@pytest.mark.parametrize(
    ("folder", "variables"),
    [
        ("usr/local/Ascend/ascend-toolkit/8.5.1", {}),
        ("usr/local/Ascend/cann-8.5.1", {}),
        ("opt/Ascend/ascend-toolkit/8.5.1", {}),
        ("root/Ascend/ascend-toolkit/8.5.1", {}),
        ("data/cann/8.5.1", {"ASCEND_TOOLKIT_HOME": "/data/cann/8.5.1"}),
        ("home/me/Ascend/ascend-toolkit/8.5.1", {"HOME": "/home/me"}),
    ],
)
def test_places_of_toolkits(tmp_path: Path, folder: str, variables: dict[str, str]) -> None:
    install_toolkit(tmp_path, folder, "8.5.1")
    assert [part.version for part in cann.find(tmp_path, variables) if part.part == "toolkit"] == ["8.5.1"]


def test_link_to_a_toolkit_counts_once(tmp_path: Path) -> None:
    home = tmp_path / "usr/local/Ascend/ascend-toolkit"
    install_toolkit(home, "8.3.RC2", "8.3.RC2")
    (home / "latest").symlink_to("8.3.RC2")
    assert [part.version for part in cann.find(tmp_path, {}) if part.part == "toolkit"] == ["8.3.RC2"]


def test_two_toolkits_are_told_apart(tmp_path: Path) -> None:
    home = tmp_path / "usr/local/Ascend"
    install_toolkit(home, "cann-9.0.0", "9.0.0")
    install_toolkit(home, "cann-9.1.0", "9.1.0")
    parts = cann.find(tmp_path, {"ASCEND_HOME_PATH": "/usr/local/Ascend/cann-9.0.0"})
    assert {part.version: part.sourced for part in parts if part.part == "toolkit"} == {
        "9.0.0": True,
        "9.1.0": False,
    }


def test_package_installed_twice_is_remarked(tmp_path: Path) -> None:
    for folder, version in (("a", "2.9.0"), ("b", "2.10.0")):
        install_package(tmp_path / folder, "torch", version)
    environment = machine.inspect(tmp_path, {}, answering(""), [str(tmp_path / "a"), str(tmp_path / "b")])
    assert environment.version("torch") == "2.9.0"
    assert environment.remarks == ("torch is installed twice: 2.9.0 and 2.10.0",)


def test_program_that_isnt_there() -> None:
    assert machine.run_command(["/no/such/program"], 1) is None
    assert machine.run_command([sys.executable, "-c", "import time; time.sleep(9)"], 0.2) == (
        124,
        f"{sys.executable}: no answer within 0.2 s",
    )


def test_memory_is_what_the_control_groups_allow(npu_machine: Path) -> None:
    write(npu_machine / "proc/meminfo", "MemTotal: 536870912 kB\nMemAvailable: 402653184 kB\n")
    whole = machine.inspect(npu_machine, {}, answering("", 1), []).host
    assert (whole.memory_total, whole.memory_available) == (512 << 30, 384 << 30)
    write(npu_machine / "proc/self/cgroup", "0::/batch/job\n")
    write(npu_machine / "proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    write(npu_machine / "sys/fs/cgroup/batch/memory.max", f"{64 << 30}\n")
    write(npu_machine / "sys/fs/cgroup/batch/job/memory.max", "max\n")
    limited = machine.inspect(npu_machine, {}, answering("", 1), []).host
    assert (limited.memory_total, limited.memory_available) == (64 << 30, 64 << 30)
    write(npu_machine / "sys/fs/cgroup/batch/memory.current", f"{60 << 30}\n")
    used = machine.inspect(npu_machine, {}, answering("", 1), []).host
    assert (used.memory_total, used.memory_available) == (64 << 30, 4 << 30)


def test_this_machine() -> None:
    environment = machine.inspect()
    assert checks.run(environment)
    assert environment.host.python


def test_package_uses_the_standard_library_alone() -> None:
    """Everything in the room imports without any installed package, and loads of Ascent what is open to all."""
    source = Path(machine.__file__).parents[2]
    names = sorted(
        str(file.relative_to(source).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for file in Path(machine.__file__).parent.rglob("*.py")
    )
    program = (
        f"import sys; sys.path.insert(0, {str(source)!r})\n"
        + "".join(f"import {name}\n" for name in names)
        + "print([name for name in sys.modules if name.split('.')[0] == 'ascent' and not name.startswith('ascent.environment')])\n"
        + "print(sorted({name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names) - {'ascent', '__main__'}))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    ours, foreign = done.stdout.splitlines()
    named = {"ascent", "ascent.errors", "ascent.host", "ascent.host.keeper", "ascent.host.machine_share"}
    assert set(ast.literal_eval(ours)) <= named
    assert foreign == "[]"
    assert importlib.util.find_spec("ascent.environment")


def test_mounts_of_what_isnt_on_the_host_are_found(npu_machine: Path) -> None:
    """Docker makes an empty folder for a source that is missing, also where a file was meant."""
    driver = npu_machine / "usr/local/Ascend/driver"
    shutil.rmtree(driver / "lib64")
    (driver / "lib64").mkdir()
    (driver / "version.info").unlink()
    (driver / "version.info").mkdir()
    environment = machine.inspect(npu_machine, sourced(), answering("", 1), [])
    (finding,) = [each for each in checks.run(environment) if each.rule == "A210"]
    assert finding.level == "warning"
    assert "/usr/local/Ascend/driver/lib64, /usr/local/Ascend/driver/version.info" in finding.what
