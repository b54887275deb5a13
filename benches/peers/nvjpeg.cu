// The bare loop of nvJPEG's hardware decoder: what a loader that uses it could reach, without a loader.
//
//     nvcc -O3 -std=c++17 benches/peers/nvjpeg.cu -o nvjpeg -lnvjpeg
//     ./nvjpeg FOLDER [--seconds S] [--output planes|rgb] [--threads N] [--siblings]
//
// One thread, two states in turn: while the engines decode one call's pictures, the next call's files are given to them. Files (4:2:0
// only) lie in page-locked memory, and are drawn at random, in calls of 64. What is decoded is not read.
//
// `--threads` has several such loops on one handle. `--siblings` pins the loop to one core, and a thread that copies memory to each of the
// others in turn. Where two cores of a virtual machine are one core of its host, the loop slows down beside that one.

#include <cuda_runtime.h>
#include <nvjpeg.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;

#define CHECK(call)                                                                         \
    do {                                                                                    \
        int code = (int)(call);                                                             \
        if (code) { fprintf(stderr, "%s: %d (line %d)\n", #call, code, __LINE__); exit(1); } \
    } while (0)

constexpr int PICTURES = 64, STATES = 2, MOST_FILES = 4000;
constexpr size_t MOST_BYTES = 1024 * 1024 * 3; // of a decoded picture

struct File {
    const unsigned char* data;
    size_t bytes;
    size_t width, height;
};

static std::vector<File> files;

static void read_files(const char* folder) {
    std::vector<std::string> names;
    for (auto& entry : std::filesystem::recursive_directory_iterator(folder))
        if (entry.is_regular_file()) names.push_back(entry.path());
    std::sort(names.begin(), names.end());
    std::shuffle(names.begin(), names.end(), std::mt19937(1));
    if (names.size() > MOST_FILES) names.resize(MOST_FILES);
    size_t bytes = 0;
    for (auto& name : names) bytes += std::filesystem::file_size(name);
    unsigned char* at;
    CHECK(cudaMallocHost(&at, bytes));
    nvjpegHandle_t handle;
    CHECK(nvjpegCreateSimple(&handle));
    for (auto& name : names) {
        size_t length = std::filesystem::file_size(name);
        std::ifstream(name, std::ios::binary).read((char*)at, length);
        int channels, width[4], height[4];
        nvjpegChromaSubsampling_t sampling;
        if (nvjpegGetImageInfo(handle, at, length, &channels, &sampling, width, height)) continue;
        if (sampling != NVJPEG_CSS_420 || (size_t)width[0] * height[0] * 3 > MOST_BYTES) continue;
        files.push_back({at, length, (size_t)width[0], (size_t)height[0]});
        at += length;
    }
    nvjpegDestroy(handle);
    if (files.empty()) { fprintf(stderr, "%s has no JPEG files of 4:2:0\n", folder); exit(1); }
}

// Decodes until `end`; counts what was decoded from `begin` on.
static void decode(nvjpegHandle_t handle, bool rgb, int seed, Clock::time_point begin, Clock::time_point end, std::atomic<long>& decoded) {
    CHECK(cudaSetDevice(0));
    auto output = rgb ? NVJPEG_OUTPUT_RGBI : NVJPEG_OUTPUT_YUV;
    std::mt19937 random(seed);
    cudaStream_t streams[STATES];
    cudaEvent_t events[STATES];
    nvjpegJpegState_t states[STATES];
    unsigned char* pixels[STATES];
    for (int at = 0; at < STATES; at++) {
        CHECK(cudaStreamCreateWithFlags(&streams[at], cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&events[at], cudaEventDisableTiming | cudaEventBlockingSync));
        CHECK(nvjpegJpegStateCreate(handle, &states[at]));
        CHECK(nvjpegDecodeBatchedInitialize(handle, states[at], PICTURES, 1, output));
        CHECK(cudaMalloc(&pixels[at], MOST_BYTES * PICTURES));
    }
    const unsigned char* data[PICTURES];
    size_t bytes[PICTURES];
    nvjpegImage_t images[PICTURES];
    for (int at = 0; Clock::now() < end; at = (at + 1) % STATES) {
        CHECK(cudaEventSynchronize(events[at])); // (nothing, the first time)
        for (int number = 0; number < PICTURES; number++) {
            const File& file = files[random() % files.size()];
            data[number] = file.data;
            bytes[number] = file.bytes;
            unsigned char* to = pixels[at] + MOST_BYTES * number;
            size_t width = (file.width + 1) / 2, height = (file.height + 1) / 2, luma = file.width * file.height;
            images[number] = {};
            images[number].channel[0] = to;
            images[number].pitch[0] = rgb ? 3 * file.width : file.width;
            if (rgb) continue;
            images[number].channel[1] = to + luma;
            images[number].channel[2] = to + luma + width * height;
            images[number].pitch[1] = images[number].pitch[2] = width;
        }
        CHECK(nvjpegDecodeBatched(handle, states[at], data, bytes, images, streams[at]));
        CHECK(cudaEventRecord(events[at], streams[at]));
        auto now = Clock::now();
        if (now >= begin && now < end) decoded += PICTURES;
    }
    CHECK(cudaDeviceSynchronize());
    for (int at = 0; at < STATES; at++) {
        nvjpegJpegStateDestroy(states[at]);
        cudaFree(pixels[at]);
        cudaEventDestroy(events[at]);
        cudaStreamDestroy(streams[at]);
    }
}

static double cpu_seconds() {
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    auto of = [](timeval time) { return time.tv_sec + 1e-6 * time.tv_usec; };
    return of(used.ru_utime) + of(used.ru_stime);
}

static void pin(std::thread& thread, int core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    CHECK(pthread_setaffinity_np(thread.native_handle(), sizeof cores, &cores));
}

int main(int count, char** arguments) {
    const char* folder = nullptr;
    double seconds = 2;
    int threads = 1;
    bool rgb = false, siblings = false;
    for (int at = 1; at < count; at++) {
        std::string name = arguments[at];
        auto value = [&] { if (++at == count) { fprintf(stderr, "%s needs a value\n", name.c_str()); exit(2); } return arguments[at]; };
        if (name == "--seconds") seconds = atof(value());
        else if (name == "--threads") threads = atoi(value());
        else if (name == "--output") rgb = !strcmp(value(), "rgb");
        else if (name == "--siblings") siblings = true;
        else folder = arguments[at];
    }
    if (!folder) { fprintf(stderr, "usage: nvjpeg FOLDER [--seconds S] [--output planes|rgb] [--threads N] [--siblings]\n"); return 2; }
    read_files(folder);
    nvjpegHandle_t handle;
    CHECK(nvjpegCreateEx(NVJPEG_BACKEND_HARDWARE, nullptr, nullptr, 0, &handle));
    unsigned engines = 0, cores_each = 0;
    CHECK(nvjpegGetHardwareDecoderInfo(handle, &engines, &cores_each));
    printf("%zu files, %u engines\n", files.size(), engines);
    fflush(stdout);

    auto after = [](double s) { return Clock::now() + std::chrono::microseconds((long)(1e6 * s)); };
    if (!siblings) {
        std::atomic<long> decoded{0};
        auto begin = after(0.7 + 0.5 * threads), end = begin + std::chrono::microseconds((long)(1e6 * seconds));
        std::vector<std::thread> loops;
        for (int seed = 0; seed < threads; seed++) loops.emplace_back(decode, handle, rgb, seed, begin, end, std::ref(decoded));
        std::this_thread::sleep_until(begin);
        double before = cpu_seconds();
        std::this_thread::sleep_until(end);
        double used = cpu_seconds() - before;
        for (auto& loop : loops) loop.join();
        printf("%s, %d threads: %.0f images/s, %.2f cores\n", rgb ? "rgb" : "planes", threads, decoded / seconds, used / seconds);
        return 0;
    }
    int cores = (int)std::thread::hardware_concurrency();
    double each = seconds / (cores + 1);
    std::atomic<long> decoded{0};
    auto begin = after(1.2);
    std::thread loop(decode, handle, rgb, 0, begin, begin + std::chrono::microseconds((long)(1.1e6 * seconds)), std::ref(decoded));
    pin(loop, 0);
    std::this_thread::sleep_until(begin);
    for (int core = 0; core < cores; core++) { // 0: nothing runs beside it
        std::atomic<bool> ends{false};
        std::thread busy([&] {
            std::vector<char> from(1 << 20, 1), to(1 << 20);
            for (unsigned sum = 0; !ends; sum += to[sum % to.size()]) memcpy(to.data(), from.data(), from.size());
        });
        if (core == 0) ends = true;
        else pin(busy, core);
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        long before = decoded;
        auto start = Clock::now();
        std::this_thread::sleep_for(std::chrono::microseconds((long)(1e6 * each)));
        double rate = (decoded - before) / std::chrono::duration<double>(Clock::now() - start).count();
        ends = true;
        busy.join();
        printf(core ? "beside core %d: %.0f images/s\n" : "alone on core %d: %.0f images/s\n", core, rate);
        fflush(stdout);
    }
    loop.join();
    return 0;
}
