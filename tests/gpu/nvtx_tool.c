/* What a profiler is to NVTX, at its smallest: writes each range that is pushed or popped to standard error.
 * NVTX 3, nvtxDetail/nvtxTypes.h: a library named by NVTX_INJECTION64_PATH is asked for InitializeInjectionNvtx2. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef void (*Function)(void);
typedef const void *(*GetExportTable)(uint32_t id);
typedef struct {
    size_t struct_size;
    int (*get_module_function_table)(int module, Function ***table, unsigned int *size);
} Callbacks;

enum { ETID_CALLBACKS = 1, MODULE_CORE = 1, PUSH_EX = 8, PUSH_A = 9, POP = 11 };

typedef struct { /* nvtxEventAttributes_v2 */
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
} Attributes;

static int push_text(const char *message) { return fprintf(stderr, "push %s\n", message) > 0 ? 0 : -1; }
static int push(const Attributes *attributes) { return push_text(attributes->message); }
static int pop(void) { return fprintf(stderr, "pop\n") > 0 ? 0 : -1; }

int InitializeInjectionNvtx2(GetExportTable get_export_table) {
    const Callbacks *callbacks = get_export_table(ETID_CALLBACKS);
    Function **table;
    unsigned int size;
    if (!callbacks || !callbacks->get_module_function_table(MODULE_CORE, &table, &size) || size <= POP) return 0;
    *table[PUSH_EX] = (Function)push;
    *table[PUSH_A] = (Function)push_text;
    *table[POP] = (Function)pop;
    return 1;
}
