// As much of a CUDA driver as the bus calls, over host memory: copies are made at once and counted, and one can be told
// to fail. What a device does is tested on a device; this shows what is asked of it, and what is not after a failure.
#include <cstdint>
#include <cstring>

using Size = std::size_t;
using Word = std::uint64_t;

extern "C" int made;
int made;
static int fails_at = -1, not_ready, looks, broken, loses;
static Size largest, total;

static int count(Size nbytes) {
    if (made++ == fails_at) return 700;
    total += nbytes;
    if (nbytes > largest) largest = nbytes;
    return 0;
}

extern "C" {
int cuCtxGetCurrent(void** found) { return *found = &made, 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuEventCreate(void** made, unsigned) { return *made = new char, 0; }
int cuEventDestroy_v2(void* event) { return delete static_cast<char*>(event), 0; }
int cuEventRecord(void*, void*) { return 0; }
int cuEventQuery(void*) { return ++looks, broken ? 719 : not_ready > 0 && not_ready-- ? 600 : 0; }
int cuStreamWaitEvent(void*, void*, unsigned) { return 0; }
int cuStreamWriteValue64_v2(void*, Word address, Word value, unsigned) {
    if (const int code = count(0)) return code;
    return *reinterpret_cast<Word*>(address) = value, 0;
}
int cuMemcpyDtoHAsync_v2(void* target, Word source, Size nbytes, void*) {
    if (const int code = count(nbytes)) return code;
    if (loses && nbytes == sizeof(Word)) return 0;
    return std::memcpy(target, reinterpret_cast<void*>(source), nbytes), 0;
}
#ifdef BATCHES
int cuMemcpyBatchAsync_v2(Word* targets, Word* sources, Size* sizes, Size many, void*, Size*, Size, void*) {
    Size nbytes = 0;
    for (Size at = 0; at < many; ++at) nbytes += sizes[at];
    if (const int code = count(nbytes)) return code;
    for (Size at = 0; at < many; ++at)
        std::memcpy(reinterpret_cast<void*>(targets[at]), reinterpret_cast<void*>(sources[at]), sizes[at]);
    return 0;
}
#endif
int cuThreadExchangeStreamCaptureMode(int*) { return 0; }

void fail_at(int call) { fails_at = call; }
void lose_numbers(int yes) { loses = yes; }
void break_down() { broken = 1; }
void recover() { broken = loses = 0; }
void be_late(int queries) { not_ready = queries; }
Size most() { return largest; }
Size all() { return total; }
int looked() { return looks; }
}
