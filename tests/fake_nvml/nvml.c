/* A libnvidia-ml.so.1 whose devices are lines of a file.
 *
 * The file that FAKE_NVML_STATE names is read again at every call, so that a test changes the machine while a
 * program watches it: replace the file, never write into it. A line is a key and a value; what is missing has
 * the default given below. A key may be for one GPU (gpu1.used) or one MIG instance of it (gpu0.mig2.used).
 * Compiled with -DWITHOUT_<function>, the library lacks that function, as an older driver's does.
 *
 *   init            what nvmlInit returns
 *   gpus            how many there are                                     1
 *   name, uuid      of a device
 *   forbidden       whether this process may not look at it
 *   total, used     bytes                                                  8 GiB, 1 GiB
 *   grow            bytes that used gains at every reading of it           0
 *   reserved        bytes of the driver itself                             512 MiB
 *   v1.used         with: the first form's used has reserved; all: no value
 *   v2.used         with, without, odd: what the second form's used is     without
 *   processes       pid:bytes, separated by spaces; none for no number
 *   utilization     per cent                                               50
 *   clocks          bits of what slows the clocks                          0
 *   xids            number or number@instance, separated by spaces: reported once each, in order
 *   supports_xids   whether the driver reports any                         1
 *   ecc.corrected, ecc.uncorrected, remapped.corrected, remapped.uncorrected, remapped.failed
 *   mig             how many instances it is divided into, 0 for not
 *   mig.places      how many it could be                                   7
 *   lost            whether the device is gone: all calls for it fail
 *   slow_ms         how long a reading of memory takes
 *   fail.<function> an error that this function returns
 *   hang.<function> whether this function never returns, like that of a driver that hangs
 *   crash.<function> whether this function ends the process
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10,
       LOST = 15, VERSION_MISMATCH = 25 };
enum { GPUS = 8, INSTANCES = 8, WHOLE = -1 };

typedef struct { int gpu, instance; } Device;
typedef struct { int reported; } Events;

static Device gpus[GPUS], instances[GPUS][INSTANCES];
static int users;
static u64 readings;
static volatile int inside;
static Events events;

/* ---- the file ------------------------------------------------------------------------------------------------ */

static int look_up(const char *key, char *value, size_t size) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[4096];
    int found = 0;
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file)) {
        char *gap = strchr(line, ' ');
        if (!gap) continue;
        *gap = 0;
        if (strcmp(line, key)) continue;
        gap[strcspn(gap + 1, "\n") + 1] = 0;
        snprintf(value, size, "%s", gap + 1);
        found = 1;
    }
    fclose(file);
    return found;
}

static int text_of(const Device *device, const char *key, char *value, size_t size) {
    char full[128];
    if (device && device->instance != WHOLE) {
        snprintf(full, sizeof full, "gpu%d.mig%d.%s", device->gpu, device->instance, key);
        if (look_up(full, value, size)) return 1;
    }
    if (device) {
        snprintf(full, sizeof full, "gpu%d.%s", device->gpu, key);
        if (look_up(full, value, size)) return 1;
    }
    return look_up(key, value, size);
}

static u64 number_of(const Device *device, const char *key, u64 otherwise) {
    char text[64];
    return text_of(device, key, text, sizeof text) ? strtoull(text, NULL, 0) : otherwise;
}

/* What every call does first: count itself, and fail where the file says so. */
static int called(const char *function, const Device *device);
#define BEGIN(device)                                                                                                  \
    do {                                                                                                               \
        int error = called(__func__, device);                                                                          \
        if (error) return error;                                                                                       \
    } while (0)

static struct { char name[64]; u64 count; } calls[64];
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static u64 count(const char *function, u64 more) {
    int at = 0;
    u64 now;
    pthread_mutex_lock(&counting);
    while (calls[at].name[0] && strcmp(calls[at].name, function)) at++;
    snprintf(calls[at].name, sizeof calls[at].name, "%s", function);
    now = calls[at].count += more;
    pthread_mutex_unlock(&counting);
    return now;
}

static int called(const char *function, const Device *device) {
    char key[128];
    u64 error;
    count(function, 1);
    snprintf(key, sizeof key, "hang.%s", function);
    while (number_of(device, key, 0)) pause();
    snprintf(key, sizeof key, "crash.%s", function);
    if (number_of(device, key, 0)) abort();
    snprintf(key, sizeof key, "fail.%s", function);
    error = number_of(device, key, SUCCESS);
    if (error) return (int)error;
    if (!users && strcmp(function, "nvmlInitWithFlags")) return UNINITIALIZED;
    return device && number_of(device, "lost", 0) ? LOST : SUCCESS;
}

/* For tests: how often a function was called, how many users the library has, how many are reading memory. */
u64 fake_nvml_calls(const char *function) { return count(function, 0); }
int fake_nvml_users(void) { return users; }
int fake_nvml_readers(void) { return inside; }

/* ---- the library ---------------------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    BEGIN(NULL);
    int error = (int)number_of(NULL, "init", SUCCESS);
    if (error) return error;
    for (int gpu = 0; gpu < GPUS; gpu++) {
        gpus[gpu] = (Device){gpu, WHOLE};
        for (int at = 0; at < INSTANCES; at++) instances[gpu][at] = (Device){gpu, at};
    }
    users++;
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    BEGIN(NULL);
    users--;
    return SUCCESS;
}

const char *nvmlErrorString(int error) {
    return error == VERSION_MISMATCH ? "Argument version mismatch" : "an error of the fake";
}

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    BEGIN(NULL);
    snprintf(version, size, "599.01");
    return SUCCESS;
}

int nvmlSystemGetNVMLVersion(char *version, unsigned size) {
    BEGIN(NULL);
    snprintf(version, size, "13.599.01");
    return SUCCESS;
}

/* ---- which devices there are ----------------------------------------------------------------------------------- */

int nvmlDeviceGetCount_v2(unsigned *count) {
    BEGIN(NULL);
    *count = (unsigned)number_of(NULL, "gpus", 1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    BEGIN(NULL);
    if (index >= number_of(NULL, "gpus", 1)) return INVALID;
    if (number_of(&gpus[index], "forbidden", 0)) return NO_PERMISSION;
    *device = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned size) {
    BEGIN(device);
    if (text_of(device, "uuid", uuid, size)) return SUCCESS;
    if (device->instance == WHOLE) snprintf(uuid, size, "GPU-%08d-fake", device->gpu);
    else snprintf(uuid, size, "MIG-%08d-%04d-fake", device->gpu, device->instance);
    return SUCCESS;
}

int nvmlDeviceGetName(Device *device, char *name, unsigned size) {
    BEGIN(device);
    if (!text_of(device, "name", name, size)) snprintf(name, size, "Fake GPU");
    return SUCCESS;
}

#ifndef WITHOUT_nvmlDeviceGetMigMode
int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    BEGIN(device);
    *current = *pending = number_of(device, "mig", 0) > 0;
    return SUCCESS;
}
#endif

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) {
    BEGIN(device);
    *count = (unsigned)number_of(device, "mig.places", 7);
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned place, Device **instance) {
    BEGIN(device);
    if (place >= number_of(device, "mig", 0)) return NOT_FOUND;
    *instance = &instances[device->gpu][place];
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *instance, Device **device) {
    BEGIN(instance);
    *device = &gpus[instance->gpu];
    return SUCCESS;
}

/* Finds only instances, by their former names: MIG-<UUID of the GPU>/<GPU instance>/<compute instance>. */
int nvmlDeviceGetHandleByUUID(const char *name, Device **device) {
    char wanted[128];
    BEGIN(NULL);
    for (int gpu = 0; gpu < GPUS; gpu++)
        for (int at = 0; at < (int)number_of(&gpus[gpu], "mig", 0); at++) {
            snprintf(wanted, sizeof wanted, "MIG-GPU-%08d-fake/%d/0", gpu, at);
            *device = &instances[gpu][at];
            if (!strcmp(name, wanted)) return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(Device *device, unsigned *id) {
    BEGIN(device);
    if (device->instance == WHOLE) return INVALID;
    *id = (unsigned)device->instance;
    return SUCCESS;
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;

static u64 used_now(const Device *device) {
    struct timespec pause = {0, 1000000L * (long)number_of(device, "slow_ms", 0)};
    inside++;
    if (pause.tv_nsec) nanosleep(&pause, NULL);
    inside--;
    return number_of(device, "used", 1ULL << 30) + readings++ * number_of(device, "grow", 0);
}

#ifndef WITHOUT_nvmlDeviceGetMemoryInfo
int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    char kind[16] = "with";
    BEGIN(device);
    u64 reserved = number_of(device, "reserved", 512ULL << 20);
    text_of(device, "v1.used", kind, sizeof kind);
    memory->total = number_of(device, "total", 8ULL << 30);
    memory->used = used_now(device) + reserved;
    memory->free = memory->total - memory->used;
    if (!strcmp(kind, "all")) memory->total = memory->free = memory->used = ~0ULL;
    return SUCCESS;
}
#endif

#ifndef WITHOUT_nvmlDeviceGetMemoryInfo_v2
int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory2 *memory) {
    char kind[16] = "without";
    BEGIN(device);
    if (memory->version != (sizeof *memory | 2u << 24)) return VERSION_MISMATCH;
    text_of(device, "v2.used", kind, sizeof kind);
    memory->total = number_of(device, "total", 8ULL << 30);
    memory->reserved = number_of(device, "reserved", 512ULL << 20);
    memory->used = used_now(device);
    memory->free = memory->total - memory->reserved - memory->used;
    if (!strcmp(kind, "with")) memory->used += memory->reserved;
    if (!strcmp(kind, "odd")) memory->free /= 2;
    return SUCCESS;
}
#endif

typedef struct { unsigned pid; u64 used; unsigned instance, compute; } Process;

static int list_processes(Device *device, unsigned *count, Process *processes) {
    char text[1024] = "", *rest = NULL;
    unsigned found = 0, room = *count;
    text_of(device, "processes", text, sizeof text);
    for (char *entry = strtok_r(text, " ", &rest); entry; entry = strtok_r(NULL, " ", &rest)) {
        char *colon = strchr(entry, ':');
        if (processes && found < room) {
            u64 used = strcmp(colon + 1, "none") ? strtoull(colon + 1, NULL, 0) : ~0ULL;
            processes[found] = (Process){(unsigned)atoi(entry), used, ~0u, ~0u};
        }
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : SUCCESS;
}

#ifndef WITHOUT_nvmlDeviceGetComputeRunningProcesses_v3
int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *processes) {
    BEGIN(device);
    return list_processes(device, count, processes);
}
#endif

#ifndef WITHOUT_nvmlDeviceGetComputeRunningProcesses_v2
int nvmlDeviceGetComputeRunningProcesses_v2(Device *device, unsigned *count, Process *processes) {
    BEGIN(device);
    return list_processes(device, count, processes);
}
#endif

/* ---- use and health ----------------------------------------------------------------------------------------------- */

int nvmlDeviceGetUtilizationRates(Device *device, unsigned rates[2]) {
    BEGIN(device);
    if (device->instance != WHOLE) return NOT_SUPPORTED;
    rates[0] = (unsigned)number_of(device, "utilization", 50);
    rates[1] = rates[0] / 2;
    return SUCCESS;
}

#ifndef WITHOUT_nvmlDeviceGetCurrentClocksEventReasons
int nvmlDeviceGetCurrentClocksEventReasons(Device *device, u64 *bits) {
    BEGIN(device);
    *bits = number_of(device, "clocks", 0);
    return SUCCESS;
}
#endif

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, u64 *bits) {
    BEGIN(device);
    *bits = number_of(device, "clocks", 0);
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(Device *device, int domain, unsigned *megahertz) {
    BEGIN(device);
    *megahertz = domain == 1 ? 1980 : 2619; /* of the multiprocessors, or of the memory and others */
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(Device *device, int domain, unsigned *megahertz) {
    return nvmlDeviceGetClockInfo(device, domain, megahertz);
}

int nvmlDeviceGetTotalEccErrors(Device *device, int kind, int since, u64 *count) {
    (void)since;
    BEGIN(device);
    *count = number_of(device, kind ? "ecc.uncorrected" : "ecc.corrected", 0);
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(Device *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    BEGIN(device);
    *corrected = (unsigned)number_of(device, "remapped.corrected", 0);
    *uncorrected = (unsigned)number_of(device, "remapped.uncorrected", 0);
    *pending = 0;
    *failed = (unsigned)number_of(device, "remapped.failed", 0);
    return SUCCESS;
}

typedef struct { Device *device; u64 type, data; unsigned instance, compute; } Event;
enum { XID = 8 };

int nvmlDeviceGetSupportedEventTypes(Device *device, u64 *types) {
    BEGIN(device);
    *types = number_of(device, "supports_xids", 1) ? XID : 0;
    return SUCCESS;
}

int nvmlEventSetCreate(Events **set) {
    BEGIN(NULL);
    events.reported = 0;
    *set = &events;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Device *device, u64 types, Events *set) {
    (void)set;
    BEGIN(device);
    return types == XID ? SUCCESS : NOT_SUPPORTED;
}

int nvmlEventSetWait_v2(Events *set, Event *event, unsigned timeout_ms) {
    char text[1024] = "", *rest = NULL;
    int at = 0;
    /* Zero is no time, or for ever: texts disagree, and a program must not rely on either. */
    struct timespec pause = {timeout_ms ? 0 : 3600, 1000000L * (long)timeout_ms};
    BEGIN(&gpus[0]);
    text_of(&gpus[0], "xids", text, sizeof text);
    for (char *entry = strtok_r(text, " ", &rest); entry; entry = strtok_r(NULL, " ", &rest), at++) {
        char *instance = strchr(entry, '@');
        if (at < set->reported) continue;
        set->reported++;
        *event = (Event){&gpus[0], XID, strtoull(entry, NULL, 0), instance ? (unsigned)atoi(instance + 1) : ~0u, ~0u};
        return SUCCESS;
    }
    nanosleep(&pause, NULL);
    return TIMEOUT;
}

int nvmlEventSetFree(Events *set) {
    (void)set;
    BEGIN(NULL);
    return SUCCESS;
}
