// Normalises pictures: bytes of three channels, pixel by pixel, become floating point numbers x * scale + bias, channel by
// channel ("chw") or pixel by pixel ("hwc"). normalize.ptx is made from this file by
//   nvcc -ptx -arch=compute_75 normalize.cu, with version and target lowered
//
// Each thread takes four pixels, which are three words; where an image's pixels are no multiple of four, one. Product and sum
// are rounded each by itself, so that a processor without fused multiply-add gives the same numbers.

struct Half { unsigned short bits; };
struct Bfloat { unsigned short bits; };

__device__ void put(float *to, float value) { *to = value; }

__device__ void put(Half *to, float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(value)); }

// To the nearest, and to the even one of two. (The values are finite.)
__device__ void put(Bfloat *to, float value) {
    const unsigned bits = __float_as_uint(value);
    to->bits = (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

template <typename T>
struct alignas(4 * sizeof(T)) Four {
    T values[4];
};

template <typename T, bool CHW>
__device__ void normalize(const unsigned char *in, T *out, unsigned long long images, unsigned long long pixels,
                          const float (&scale)[3], const float (&bias)[3]) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    const unsigned long long first = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (pixels % 4 != 0) {
        for (unsigned long long item = first; item < images * pixels; item += step) {
            const unsigned long long image = item / pixels, pixel = item % pixels;
            for (int channel = 0; channel < 3; channel++) {
                const float value = in[item * 3 + channel];
                T *to = CHW ? out + (image * 3 + channel) * pixels + pixel : out + item * 3 + channel;
                put(to, __fadd_rn(__fmul_rn(value, scale[channel]), bias[channel]));
            }
        }
        return;
    }
    const unsigned long long quads = pixels / 4;
    for (unsigned long long item = first; item < images * quads; item += step) {
        const unsigned long long image = item / quads, quad = item % quads;
        const unsigned *words = (const unsigned *)in + item * 3;
        const unsigned three[3] = {words[0], words[1], words[2]};
        Four<T> fours[3];
        for (int byte = 0; byte < 12; byte++) {
            const int channel = byte % 3, pixel = byte / 3;
            const float value = three[byte / 4] >> byte % 4 * 8 & 0xff;
            T *to = CHW ? &fours[channel].values[pixel] : &fours[byte / 4].values[byte % 4];
            put(to, __fadd_rn(__fmul_rn(value, scale[channel]), bias[channel]));
        }
        for (int part = 0; part < 3; part++) {
            T *to = CHW ? out + (image * 3 + part) * pixels + quad * 4 : out + item * 12 + part * 4;
            *(Four<T> *)to = fours[part];
        }
    }
}

#define KERNEL(name, T, CHW)                                                                                            \
    extern "C" __global__ void name(const unsigned char *in, T *out, unsigned long long images,                         \
                                    unsigned long long pixels, float s0, float s1, float s2, float b0, float b1,        \
                                    float b2) {                                                                         \
        const float scale[3] = {s0, s1, s2}, bias[3] = {b0, b1, b2};                                                    \
        normalize<T, CHW>(in, out, images, pixels, scale, bias);                                                        \
    }

KERNEL(pinfeed_normalize_f32_chw, float, true)
KERNEL(pinfeed_normalize_f32_hwc, float, false)
KERNEL(pinfeed_normalize_f16_chw, Half, true)
KERNEL(pinfeed_normalize_f16_hwc, Half, false)
KERNEL(pinfeed_normalize_bf16_chw, Bfloat, true)
KERNEL(pinfeed_normalize_bf16_hwc, Bfloat, false)
