// Normalises pictures: interleaved bytes of three channels become floating point numbers x * scale + bias, planar
// ("chw") or interleaved ("hwc"). "mix" also mixes each picture with the one before, within a box; "labels" mixes
// labels in the same way.
//
// `ci/ptx.sh --write` makes normalize.ptx from this file, and, with -DMIXING, mix.ptx. They are separate because the
// driver compiles a file when it is first needed, and few programs need both.
//
// If pictures can be read by words, each thread takes three: for "chw" four neighbouring pixels; for "hwc" words that
// are far apart, so that neighbouring threads write neighbouring elements. Otherwise each thread takes one pixel. Each
// product and each sum is rounded separately, so that a processor without fused multiply-add gets the same numbers.

typedef unsigned long long Size;

struct Half { unsigned short bits; };
struct Bfloat { unsigned short bits; };

__device__ void put(float *to, float value) { *to = value; }

__device__ void put(Half *to, float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(value)); }

// Rounds to the nearest value, ties to even. (The values are finite.)
__device__ void put(Bfloat *to, float value) {
    const unsigned bits = __float_as_uint(value);
    to->bits = (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

template <typename T>
struct alignas(4 * sizeof(T)) Four {
    T values[4];
};

// Within the box, a pixel is `own` times itself plus `other` times the previous picture. As `Mixture` in
// driver/kernels/normalize.rs.
struct Mixture {
    Size width, left, top, right, bottom;
    float own, other;
};

// Which of the COUNT pixels from this one on lie in the box, as bits.
template <int COUNT>
__device__ unsigned inside(const Mixture &mixture, Size pixel) {
    Size x = pixel % mixture.width, y = pixel / mixture.width;
    unsigned found = 0;
    for (int ahead = 0; ahead < COUNT; ahead++) {
        const bool is_in = x >= mixture.left && x < mixture.right && y >= mixture.top && y < mixture.bottom;
        found |= (unsigned)is_in << ahead;
        if (++x == mixture.width) {
            x = 0;
            y++;
        }
    }
    return found;
}

// The kernel's arguments, except the addresses.
struct Work {
    Size images, pixels;
    float scale[3], bias[3];
    Mixture mixture;

    // The channel's value of one byte, or of two that are mixed.
    __device__ float value(float own, float other, bool mixed, float s, float b) const {
        const float normal = __fadd_rn(__fmul_rn(own, s), b);
        if (!mixed) return normal;
        const float before = __fadd_rn(__fmul_rn(other, s), b);
        return __fadd_rn(__fmul_rn(normal, mixture.own), __fmul_rn(before, mixture.other));
    }
};

// The previous picture; for the first one, the last.
__device__ Size before(Size image, Size images) { return (image == 0 ? images : image) - 1; }

__device__ Size first_item() { return (Size)blockIdx.x * blockDim.x + threadIdx.x; }

__device__ Size step() { return (Size)gridDim.x * blockDim.x; }

template <typename T, bool CHW, bool MIX>
__device__ void by_pixel(const unsigned char *in, T *out, const Work &work) {
    const Size pixels = work.pixels;
    for (Size item = first_item(); item < work.images * pixels; item += step()) {
        const Size image = item / pixels, pixel = item % pixels;
        const bool mixed = MIX && inside<1>(work.mixture, pixel);
        const Size other = mixed ? before(image, work.images) * pixels + pixel : item;
        for (int channel = 0; channel < 3; channel++) {
            const float own_byte = in[item * 3 + channel], other_byte = in[other * 3 + channel];
            T *to = CHW ? out + (image * 3 + channel) * pixels + pixel : out + item * 3 + channel;
            put(to, work.value(own_byte, other_byte, mixed, work.scale[channel], work.bias[channel]));
        }
    }
}

// Each picture has a multiple of four pixels.
template <typename T, bool MIX>
__device__ void to_chw(const unsigned *in, T *out, const Work &work) {
    const Size quads = work.pixels / 4;
    for (Size item = first_item(); item < work.images * quads; item += step()) {
        const Size image = item / quads, quad = item % quads;
        const unsigned *words = in + item * 3;
        const unsigned own[3] = {words[0], words[1], words[2]};
        unsigned other[3] = {0, 0, 0}, mixed = 0;
        if (MIX) mixed = inside<4>(work.mixture, quad * 4);
        if (mixed != 0) {
            words = in + (before(image, work.images) * quads + quad) * 3;
            for (int word = 0; word < 3; word++) other[word] = words[word];
        }
        Four<T> fours[3];
        for (int byte = 0; byte < 12; byte++) {
            const int channel = byte % 3, pixel = byte / 3, shift = byte % 4 * 8;
            const float own_byte = own[byte / 4] >> shift & 0xff, other_byte = other[byte / 4] >> shift & 0xff;
            const float value = work.value(own_byte, other_byte, mixed >> pixel & 1, work.scale[channel], work.bias[channel]);
            put(&fours[channel].values[pixel], value);
        }
        for (int channel = 0; channel < 3; channel++) {
            *(Four<T> *)(out + (image * 3 + channel) * work.pixels + quad * 4) = fours[channel];
        }
    }
}

// The number for a channel. (Indexing by a run-time value would place the array in memory.)
__device__ float pick(const float (&numbers)[3], unsigned channel) {
    return channel == 0 ? numbers[0] : channel == 1 ? numbers[1] : numbers[2];
}

// If pictures are mixed, each has a multiple of four pixels.
template <typename T, bool MIX>
__device__ void to_hwc(const unsigned char *bytes, T *out, const Work &work) {
    const Size elements = work.images * work.pixels * 3, words = elements / 4, own_words = work.pixels / 4 * 3;
    const unsigned *in = (const unsigned *)bytes;
    // The channel of a word's first byte, which is byte 4 * item, is item % 3. A thread's words are a multiple of three
    // apart, so all begin with the same channel (one or two of all threads get no words). `scale` and `bias` are
    // rotated to begin with that channel.
    const Size threads = step() / 3 * 3, first = first_item();
    const unsigned channel = first % 3;
    float scale[3], bias[3];
    for (int place = 0; place < 3; place++) {
        scale[place] = pick(work.scale, (channel + place) % 3);
        bias[place] = pick(work.bias, (channel + place) % 3);
    }
    constexpr int PARTS = MIX ? 1 : 3;
    for (Size start = first; first < threads && start < words; start += PARTS * threads) {
        // All loads are in flight before the first result is used.
        unsigned own[PARTS], other = 0, mixed = 0;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const Size item = start + part * threads;
            own[part] = item < words ? in[item] : 0;
        }
        if (MIX) {
            // A word holds bytes of two pixels.
            const Size image = start / own_words, word = start % own_words;
            mixed = inside<2>(work.mixture, word * 4 / 3);
            if (mixed != 0) other = in[before(image, work.images) * own_words + word];
        }
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const Size item = start + part * threads;
            Four<T> four;
            for (int byte = 0; byte < 4; byte++) {
                const bool is_mixed = mixed >> (channel + byte >= 3) & 1;
                const float own_byte = own[part] >> byte * 8 & 0xff, other_byte = other >> byte * 8 & 0xff;
                put(&four.values[byte], work.value(own_byte, other_byte, is_mixed, scale[byte % 3], bias[byte % 3]));
            }
            if (item < words) *(Four<T> *)(out + item * 4) = four;
        }
    }
    // The bytes that remain are less than a word. If pictures are mixed, none remain.
    const Size last = words * 4 + first;
    if (!MIX && last < elements) {
        put(out + last, work.value(bytes[last], 0, false, pick(work.scale, last % 3), pick(work.bias, last % 3)));
    }
}

template <typename T, bool CHW, bool MIX>
__device__ void normalize(const unsigned char *in, T *out, const Work &work) {
    if (work.pixels % 4 != 0 && (CHW || MIX)) {
        by_pixel<T, CHW, MIX>(in, out, work);
    } else if (CHW) {
        to_chw<T, MIX>((const unsigned *)in, out, work);
    } else {
        to_hwc<T, MIX>(in, out, work);
    }
}

#ifndef MIXING

#define NORMALIZE(name, T, CHW)                                                                                         \
    extern "C" __global__ void pinfeed_normalize_##name(const unsigned char *in, T *out, Size images, Size pixels,      \
                                                        float s0, float s1, float s2, float b0, float b1, float b2) {   \
        normalize<T, CHW, false>(in, out, {images, pixels, {s0, s1, s2}, {b0, b1, b2}, {}});                            \
    }

NORMALIZE(f32_chw, float, true)
NORMALIZE(f32_hwc, float, false)
NORMALIZE(f16_chw, Half, true)
NORMALIZE(f16_hwc, Half, false)
NORMALIZE(bf16_chw, Bfloat, true)
NORMALIZE(bf16_hwc, Bfloat, false)

#else

#define MIX_PICTURES(name, T, CHW)                                                                                      \
    extern "C" __global__ void pinfeed_mix_##name(const unsigned char *in, T *out, Size images, Size pixels, float s0,  \
                                                  float s1, float s2, float b0, float b1, float b2, Mixture mixture) {  \
        normalize<T, CHW, true>(in, out, {images, pixels, {s0, s1, s2}, {b0, b1, b2}, mixture});                        \
    }

MIX_PICTURES(f32_chw, float, true)
MIX_PICTURES(f32_hwc, float, false)
MIX_PICTURES(f16_chw, Half, true)
MIX_PICTURES(f16_hwc, Half, false)
MIX_PICTURES(bf16_chw, Bfloat, true)
MIX_PICTURES(bf16_hwc, Bfloat, false)

// The values in a label's row, as bits of the row's type. As `Weights` in driver/kernels/labels.rs.
struct Weights {
    unsigned none, own, other, both, invalid;
};

// Row i has one number for each class: for label i and, if `mixed` is not 0, for label i - 1 (for the first row, the
// last label). If either label is not a class, all numbers of the row are NaN.
template <typename T>
__device__ void labels(const long long *in, T *out, Size rows, Size classes, unsigned mixed, const Weights &weights) {
    for (Size item = first_item(); item < rows * classes; item += step()) {
        const Size row = item / classes, place = item % classes;
        // A label below 0 is a large number.
        const Size own = (Size)in[row], other = mixed != 0 ? (Size)in[before(row, rows)] : own;
        unsigned found = own == place ? weights.own : weights.none;
        if (mixed != 0 && other == place) found = own == place ? weights.both : weights.other;
        if (own >= classes || other >= classes) found = weights.invalid;
        out[item] = (T)found;
    }
}

#define LABELS(bits, T)                                                                                                 \
    extern "C" __global__ void pinfeed_labels_##bits(const long long *in, T *out, Size rows, Size classes,              \
                                                     unsigned mixed, Weights weights) {                                 \
        labels<T>(in, out, rows, classes, mixed, weights);                                                              \
    }

LABELS(16, unsigned short)
LABELS(32, unsigned)

#endif
