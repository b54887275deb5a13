/* Stands in for nvJPEG, as much of it as is called. Planes are written when a decode is called, as the hardware does, which does not
 * wait for the stream.
 *
 * A JPEG file is taken for a blank one: its planes become grey. Any other "file" is eight bytes, or more: what happens to it, a number, and the heights of luma and chroma, of two bytes each. Its planes are as wide
 * as their pitch, and byte i of plane p is number + 31 * p + 7 * i. What happens is one of
 *
 *   d  it is decoded
 *   c  it is decoded, and of one colour: luma is the number, and chroma is none
 *   s  it is skipped without a word
 *   b, u, x  the call ends here, with BAD_JPEG, JPEG_NOT_SUPPORTED, INTERNAL_ERROR
 *   #  the call ends here, with the number as its status
 *
 * A state has slots, which take turns within a call. A slot exchanges its memory when a picture is larger than those before it, or has other
 * chroma. That is only counted: the memory that is taken is the allocators'.
 *
 * Kernels (backend 2) have two blocks of device memory: one of EACH bytes for each picture and the files, and one of eleven times the files. A
 * block that is too small is given back, and then a larger one is asked for. A state that is refused one is broken: it fails at all that it is
 * asked. (nvJPEG uses what it has given back.)
 *
 * Macros: MAJOR and MINOR, the version; LACKS_DECODE and LACKS_INFO, symbols that are missing; ENGINES; PROPERTY_RESULT,
 * CREATE_RESULT and HARDWARE_RESULT, what these calls return, the last for the hardware's backend alone; EACH, how many bytes of each allocator a picture takes (kernels: of the device's). */

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef MAJOR
#define MAJOR 13
#endif
#ifndef MINOR
#define MINOR 0
#endif
#ifndef ENGINES
#define ENGINES 7
#endif
#ifndef PROPERTY_RESULT
#define PROPERTY_RESULT 0
#endif
#ifndef CREATE_RESULT
#define CREATE_RESULT 0
#endif

#ifndef HARDWARE_RESULT
#define HARDWARE_RESULT 0
#endif

enum { KERNELS = 2, HARDWARE = 3 };
enum { NOT_INITIALIZED = 1, INVALID = 2, BAD_JPEG = 3, NOT_SUPPORTED = 4, ALLOCATOR_FAILURE = 5, EXECUTION_FAILED = 6, INTERNAL_ERROR = 8 };

typedef int (*allocate)(void *, void **, size_t, void *);
typedef int (*release)(void *, void *, size_t, void *);

enum { SLOTS = 14 };

struct allocator {
    allocate allocate;
    release release;
    void *context;
};

struct handle {
    struct allocator device, host;
    int backend;
};

struct state {
    struct handle *handle;
    int count; /* initialized for so many; 0 after a failure */
    int is_broken;
    void *memory, *host;
    size_t bytes;
    struct block {
        void *memory;
        size_t bytes;
    } blocks[2];
    struct slot {
        size_t file, luma[2], chroma[2];
    } slots[SLOTS];
};

struct image {
    unsigned char *channel[4];
    size_t pitch[4];
};

/* What the tests read: calls, and what is alive. */
int stub_calls, stub_initialized, stub_created, stub_handles, stub_states, stub_states_made, stub_blanks, stub_exchanged;

/* The fewest pictures of a call. */
int stub_fewest = 1 << 30;

/* What the tests set: the most pictures that there is memory for, a call that fails, and whether decodes hang; and how many do. */
int stub_most, stub_fails_initialize, stub_refuses_blanks;
volatile int stub_held, stub_hanging;

#ifndef EACH
#define EACH 1000
#endif

int nvjpegGetProperty(int which, int *value) {
    if (PROPERTY_RESULT)
        return PROPERTY_RESULT;
    *value = which == 0 ? MAJOR : which == 1 ? MINOR : 0;
    return 0;
}

int nvjpegCreateExV2(int backend, struct allocator *device, struct allocator *host, unsigned flags, struct handle **out) {
    if (CREATE_RESULT)
        return CREATE_RESULT;
    if (flags || (backend != KERNELS && backend != HARDWARE))
        return INVALID;
    if (backend == HARDWARE && HARDWARE_RESULT)
        return HARDWARE_RESULT;
    *out = malloc(sizeof **out);
    (*out)->device = *device;
    (*out)->host = *host;
    (*out)->backend = backend;
    stub_created++;
    stub_handles++;
    return 0;
}

int nvjpegDestroy(struct handle *handle) {
    free(handle);
    stub_handles--;
    return 0;
}

#ifndef LACKS_INFO
int nvjpegGetHardwareDecoderInfo(struct handle *handle, unsigned *engines, unsigned *cores) {
    (void)handle;
    *engines = ENGINES;
    *cores = 1;
    return 0;
}
#endif

int nvjpegJpegStateCreate(struct handle *handle, struct state **out) {
    *out = calloc(1, sizeof **out);
    (*out)->handle = handle;
    stub_states++;
    stub_states_made++;
    return 0;
}

static int without_memory(struct state *state) {
    state->is_broken = state->handle->backend == KERNELS;
    return ALLOCATOR_FAILURE;
}

static void give_back(struct state *state) {
    struct handle *handle = state->handle;
    if (state->memory)
        handle->device.release(handle->device.context, state->memory, state->bytes, 0);
    if (state->host)
        handle->host.release(handle->host.context, state->host, state->bytes, 0);
    state->memory = state->host = 0;
}

static void give_block_back(struct state *state, struct block *block) {
    struct handle *handle = state->handle;
    if (block->memory)
        handle->device.release(handle->device.context, block->memory, block->bytes, 0);
    block->memory = 0;
}

int nvjpegJpegStateDestroy(struct state *state) {
    give_back(state);
    give_block_back(state, &state->blocks[0]);
    give_block_back(state, &state->blocks[1]);
    free(state);
    stub_states--;
    return 0;
}

int nvjpegDecodeBatchedInitialize(struct handle *handle, struct state *state, int count, int threads, int format) {
    stub_initialized++;
    if (stub_fails_initialize)
        return INTERNAL_ERROR;
    if (state->handle != handle || count < 1 || threads != 1 || format != 1)
        return INVALID;
    if (state->is_broken)
        return EXECUTION_FAILED;
    give_back(state);
    state->count = 0;
    state->bytes = (size_t)count * (handle->backend == HARDWARE ? EACH : 1000);
    if (stub_most && count > stub_most)
        return without_memory(state);
    if ((handle->backend == HARDWARE && handle->device.allocate(handle->device.context, &state->memory, state->bytes, 0)) ||
        handle->host.allocate(handle->host.context, &state->host, state->bytes, 0))
        return without_memory(state);
    memset(state->host, 1, state->bytes);
    state->count = count;
    return 0;
}

#ifndef LACKS_DECODE
static int has_block(struct state *state, struct block *block, size_t bytes) {
    struct handle *handle = state->handle;
    if (block->memory && block->bytes >= bytes)
        return 1;
    give_block_back(state, block);
    block->bytes = bytes;
    return handle->device.allocate(handle->device.context, &block->memory, bytes, 0) == 0;
}

/* The next picture of a call needs this of its slot. */
static void use_slot(struct slot *slot, struct slot needs) {
    int has_memory = slot->file > 0;
    int is_other = !slot->chroma[0] != !needs.chroma[0] || (slot->chroma[0] < slot->luma[0]) != (needs.chroma[0] < needs.luma[0]) ||
                   (slot->chroma[1] < slot->luma[1]) != (needs.chroma[1] < needs.luma[1]);
    int is_larger = needs.file > slot->file || needs.luma[0] > slot->luma[0] || needs.luma[1] > slot->luma[1];
    if (has_memory && (is_other || is_larger))
        stub_exchanged++;
    if (!has_memory || is_other) {
        *slot = needs;
        return;
    }
    if (needs.file > slot->file)
        slot->file = needs.file;
    for (int side = 0; side < 2; side++)
        if (needs.luma[side] > slot->luma[side])
            slot->luma[side] = needs.luma[side], slot->chroma[side] = needs.chroma[side];
}

/* What a blank picture needs: its sides are behind its SOF0 marker. */
static struct slot needs_of_blank(const unsigned char *file, size_t length) {
    size_t at = 2;
    while (file[at + 1] != 0xC0)
        at += 2 + (file[at + 2] << 8 | file[at + 3]);
    size_t height = file[at + 5] << 8 | file[at + 6], width = file[at + 7] << 8 | file[at + 8], factors = file[at + 11];
    struct slot needs = {length, {width, height}, {0, 0}};
    if (file[at + 9] > 1)
        needs.chroma[0] = width / (factors >> 4), needs.chroma[1] = height / (factors & 15);
    return needs;
}

int nvjpegDecodeBatched(struct handle *handle, struct state *state, const unsigned char *const *files, const size_t *lengths,
                        struct image *images, void *stream) {
    (void)stream;
    stub_calls++;
    stub_hanging++;
    while (stub_held)
        usleep(200);
    stub_hanging--;
    if (state->handle != handle || !state->count)
        return NOT_INITIALIZED;
    if (state->is_broken)
        return EXECUTION_FAILED;
    if (state->count < stub_fewest)
        stub_fewest = state->count;
    size_t bytes = 0;
    for (int at = 0; at < state->count; at++)
        bytes += lengths[at];
    if (handle->backend == KERNELS && (!has_block(state, &state->blocks[0], bytes + (size_t)state->count * EACH) ||
                                       !has_block(state, &state->blocks[1], 11 * bytes)))
        return state->count = 0, without_memory(state);
    for (int at = 0; at < state->count; at++) {
        const unsigned char *file = files[at];
        struct slot *slot = &state->slots[at % SLOTS];
        if (lengths[at] < 8)
            return state->count = 0, INVALID;
        if (file[0] == 0xFF && file[1] == 0xD8) {
            stub_blanks++;
            if (stub_refuses_blanks)
                return state->count = 0, ALLOCATOR_FAILURE;
            struct slot needs = needs_of_blank(file, lengths[at]);
            for (int plane = 0; plane < 3 && images[at].channel[plane]; plane++)
                memset(images[at].channel[plane], 128, images[at].pitch[plane] * (plane ? needs.chroma[1] : needs.luma[1]));
            use_slot(slot, needs);
            continue;
        }
        use_slot(slot, (struct slot){lengths[at], {images[at].pitch[0], file[2] | file[3] << 8}, {images[at].pitch[1], file[4] | file[5] << 8}});
        switch (file[0]) {
        case 'b': return state->count = 0, BAD_JPEG;
        case 'u': return state->count = 0, NOT_SUPPORTED;
        case 'x': return state->count = 0, INTERNAL_ERROR;
        case '#': return state->count = 0, file[1];
        case 's': continue;
        }
        for (int plane = 0; plane < 3; plane++) {
            size_t rows = plane ? file[4] | file[5] << 8 : file[2] | file[3] << 8;
            for (size_t i = 0; i < rows * images[at].pitch[plane]; i++)
                images[at].channel[plane][i] = file[0] == 'c' ? (plane ? 128 : file[1]) : (unsigned char)(file[1] + 31 * plane + 7 * i);
        }
    }
    return 0;
}
#endif
