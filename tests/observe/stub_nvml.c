/* A libnvidia-ml.so.1 for tests: answers from the file that NVML_STUB names, read at each call.
 *
 * Lines are `key number`. `devI.KEY` goes before `KEY`. `NAME.err` is the code that function NAME returns,
 * `err` that of every call on a device, `init.err` that of the start; `latency_us` is slept in each reading.
 * gcc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 stub_nvml.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;

static long long setting(const char *key, long long otherwise) {
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    char name[80];
    long long value, found = otherwise;
    if (!file) return otherwise;
    while (fscanf(file, "%79s %lld", name, &value) == 2)
        if (!strcmp(name, key)) found = value;
    fclose(file);
    return found;
}

/* a handle is 100 * (GPU + 1), plus slot + 1 for a MIG instance */
static int gpu_of(void *handle) { return (int)((size_t)handle / 100) - 1; }
static int slot_of(void *handle) { return (int)((size_t)handle % 100) - 1; }

static long long of(void *handle, const char *key, long long otherwise) {
    char name[80];
    snprintf(name, sizeof name, "dev%d.%s", gpu_of(handle), key);
    return setting(name, setting(key, otherwise));
}

static int failure(void *handle, const char *function) {
    char name[80];
    usleep((useconds_t)setting("latency_us", 0));
    snprintf(name, sizeof name, "%s.err", function);
    long long code = of(handle, "err", 0);
    return (int)(code ? code : of(handle, name, 0));
}

#define READS(name) int code = failure(device, name); if (code) return code

int nvmlInitWithFlags(unsigned flags) { (void)flags; return (int)setting("init.err", 0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "stub error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)setting("count", 1); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(size_t)(100 * (index + 1));
    return (int)of(*device, "handle.err", of(*device, "err", 0));
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    if (slot_of(device) >= 0)
        snprintf(text, size, "MIG-%d-%d", gpu_of(device), slot_of(device));
    else
        snprintf(text, size, "GPU-%d", gpu_of(device));
    return 0;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    (void)device;
    snprintf(text, size, "Stub GPU");
    return 0;
}
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    long long instances = of(device, "mig", -1);
    if (instances < 0) return 3;
    *current = *pending = instances > 0;
    return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) { (void)device; *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned slot, void **mig) {
    if (slot >= of(device, "mig", 0)) return 6;
    *mig = (char *)device + slot + 1;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2]) {
    READS("util");
    if (of(device, "mig", 0) > 0) return 3;
    rates[0] = (unsigned)of(device, "util", 40);
    rates[1] = 1;
    return 0;
}
struct sample { u64 stamp; union { unsigned u; u64 wide; } value; };
int nvmlDeviceGetSamples(void *device, int type, u64 since, int *kind, unsigned *count, struct sample *out) {
    READS("samples");
    (void)type;
    u64 first = (u64)of(device, "samples.first_us", 0);
    unsigned held = (unsigned)of(device, "samples.n", 0), given = 0;
    if (of(device, "mig", 0) > 0) return 3;
    for (unsigned i = 0; i < held; i++) {
        if (first + i <= since) continue;
        if (out) out[given] = (struct sample){first + i, {.u = (unsigned)of(device, "samples.value", 0) + 10 * i}};
        given++;
    }
    *kind = 1;
    *count = given;
    return given ? 0 : 6;
}
int nvmlDeviceGetMemoryInfo(void *device, u64 memory[3]) { /* total, free, used */
    READS("memory_v1");
    memory[0] = (u64)of(device, "total", 1000000);
    memory[2] = (u64)(of(device, "used", 100000) + of(device, "reserved", 5000));
    memory[1] = memory[0] - memory[2];
    return 0;
}
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
    READS("memory_v2");
    if (memory->version != (sizeof *memory | 2u << 24)) return 25;
    memory->total = (u64)of(device, "total", 1000000);
    memory->reserved = (u64)of(device, "reserved", 5000);
    memory->used = (u64)of(device, slot_of(device) >= 0 ? "mig_used" : "used", 100000);
    memory->free = memory->total - memory->reserved - memory->used;
    return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    READS("power");
    *milliwatts = (unsigned)of(device, "power_mw", 250500);
    return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, u64 *millijoules) {
    READS("energy");
    *millijoules = (u64)of(device, "energy_mj", 123456);
    return 0;
}
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) {
    READS("clock");
    (void)kind;
    *mhz = 1410;
    return 0;
}
struct temperature { unsigned version, sensor; int celsius; };
int nvmlDeviceGetTemperatureV(void *device, struct temperature *temperature) {
    READS("temperature_v");
    temperature->celsius = 61;
    return 0;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    READS("temperature");
    (void)sensor;
    *celsius = 62;
    return 0;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, u64 *mask) {
    READS("events");
    *mask = 0x44;
    return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *mask) {
    READS("throttle");
    *mask = 0x4;
    return 0;
}
