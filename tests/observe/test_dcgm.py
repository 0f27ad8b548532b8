"""dcgm-exporter's text as it writes it."""

from harness.observe.clocks import HOST_CLOCKS
from harness.observe.dcgm import DcgmSource
from harness.observe.fetch import Getter

A100 = 'gpu="0",UUID="GPU-aa",pci_bus_id="00000000:07:00.0",modelName="NVIDIA A100",Hostname="n1"'
H100 = 'gpu="3",UUID="GPU-bb",pci_bus_id="00000000:0A:00.0",modelName="NVIDIA H100",Hostname="n1"'
MIG = A100 + ',GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"'
TEXT = f"""\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{{A100}}} 63
DCGM_FI_DEV_GPU_UTIL{{{H100}}} 9223372036854775794
DCGM_FI_DEV_FB_USED{{{A100}}} 1000
DCGM_FI_DEV_FB_FREE{{{A100}}} 79000
DCGM_FI_DEV_FB_RESERVED{{{A100}}} 500
DCGM_FI_DEV_FB_USED{{{H100}}} 0
DCGM_FI_DEV_FB_FREE{{{H100}}} 0
DCGM_FI_DEV_POWER_USAGE{{{A100}}} 212.5
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{A100}}} 5000
DCGM_FI_DEV_GPU_TEMP{{{A100}}} 54
DCGM_FI_DEV_GPU_TEMP{{{H100}}} 2147483632
DCGM_FI_DEV_SM_CLOCK{{{A100}}} 1410
DCGM_FI_DEV_XID_ERRORS{{{A100}}} 79
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{A100}}} 0.2
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{MIG}}} 0.75
"""
MIB = 2**20


def read(service, text):
    service.answers = {"/metrics": text.encode()}
    source = DcgmSource(Getter(service.url, timeout_s=1), "host", HOST_CLOCKS)
    rows = {row.gpu: row for row in source.read()}
    source.close()
    return rows


def test_values_in_our_units_by_uuid(service):
    row = read(service, TEXT)["GPU-aa"]
    assert (row.index, row.name, row.source, row.mem_api) == (0, "NVIDIA A100", "dcgm", "dcgm")
    assert row.util == 0.63
    assert row.mem_used_bytes == 1000 * MIB
    assert row.mem_reserved_bytes == 500 * MIB
    assert row.mem_total_bytes == 80_500 * MIB
    assert (row.power_w, row.energy_j, row.temp_c, row.sm_mhz) == (212.5, 5.0, 54, 1410)
    assert row.missing == {"throttle": "not exported"}


def test_blanks_and_unified_memory_are_missing(service):
    row = read(service, TEXT)["GPU-bb"]
    assert (row.util, row.temp_c, row.mem_used_bytes, row.mem_total_bytes) == (None, None, None, None)
    assert set(row.missing) >= {"util", "temp_c", "mem_used_bytes", "mem_total_bytes", "power_w"}


def test_a_mig_instance_is_a_gpu_of_its_own_and_busy_by_its_engine(service):
    rows = read(service, TEXT)
    assert set(rows) == {"GPU-aa", "GPU-bb", "GPU-aa/7"}
    assert rows["GPU-aa/7"].util == 0.75


def test_an_exporter_that_fails_gives_no_rows(service):
    assert read(service, "nothing here") == {}
    service.answers = {"/metrics": 503}
    source = DcgmSource(Getter(service.url, timeout_s=1), "host", HOST_CLOCKS)
    assert source.read() == []
    source.close()
