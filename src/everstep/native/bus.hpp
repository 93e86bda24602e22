// Copies from a device to pinned host memory, a little at a time, by a thread of its own.
//
// What is asked of a device waits for everything that was asked for before, whatever its stream or priority: a loss that
// training reads comes after all the gradients. So a portion is asked for at a time, and the next when it has arrived.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <sys/types.h>

namespace everstep {

using Stream = void*;
using Event = void*;

using Clock = std::chrono::steady_clock;

// When to ask for the next portion: as long before the one under way arrives as asking takes. Beside a program that has
// the driver's ear that is not short.
class Headway {
   public:
    // The device was asked for a portion, which took so long.
    void asked(Clock::duration took);
    // A portion has begun to travel.
    void left(Clock::time_point now, std::size_t nbytes, std::size_t pieces);
    // It was seen to arrive.
    void arrived(Clock::time_point now);
    Clock::time_point due() const;

   private:
    double travel() const;

    Clock::time_point left_;
    double bytes_ = 0, pieces_ = 0;
    double seconds_per_byte_ = 0;  // 0: not known yet
    double asking_seconds_ = 0;
};

// Where bytes lie on the device, and where they go in a block: made once, sent as often as wanted. The thread shares
// what is in it, not the Python object: it never needs the GIL.
struct Copies {
    struct Lists {
        std::vector<std::uint64_t> places, sources;
        std::vector<std::size_t> sizes;
    };
    std::shared_ptr<const Lists> lists;

    Copies(std::vector<std::uint64_t> places, std::vector<std::uint64_t> sources, std::vector<std::size_t> sizes);
};

class Bus {
   public:
    // For the calling thread's CUDA context. `wakes` is an eventfd, told of all copies that have been asked for.
    // `numbers`, 64 bits each from 0 to kNumbers - 1, lie on the device, `flag`, which is 0, in pinned memory: behind
    // each portion its number is copied there. So nobody has to ask the driver whether it has arrived.
    Bus(std::uintptr_t stream, int wakes, std::uint64_t numbers, std::uint64_t flag);
    ~Bus();

    // Copies into the block at `address`, once `training` has come as far as it is queued now, so many bytes at a time.
    // Returns their number.
    std::uint64_t copy(const Copies& copies, std::uint64_t address, std::uintptr_t training, std::size_t portion);
    // A 64-bit word into pinned memory, after everything before it.
    std::uint64_t write(std::uint64_t address, std::uint64_t value);
    // Ask for everything up to this number at once. When this returns it is in the stream, and an event can follow it.
    void hurry(std::uint64_t number);
    std::uint64_t asked() const { return asked_.load(); }
    void close();

    static constexpr std::uint64_t kNumbers = 512;  // a power of two

   private:
    struct Job {
        std::uint64_t number = 0;
        std::shared_ptr<const Copies::Lists> copies;  // none: a word is written
        std::uint64_t address = 0;
        std::size_t portion_bytes = 0;
        std::uint64_t value = 0;
        Event after = nullptr;
    };
    struct Piece {
        std::uint64_t target, source;
        std::size_t nbytes;
    };

    std::uint64_t put(Job job);
    void run();
    int perform(const Job& job);
    int await(const Job& job);
    int send(const Job& job);
    int queue(std::vector<Piece>& portion, const Job& job);
    int arrived(const Job& job, Clock::time_point end);
    int ask(const std::vector<Piece>& portion);
    bool hurried(const Job& job) const { return hurried_.load() >= job.number; }
    void refuse_if_failed();
    Event event();

    Stream stream_;
    void* context_ = nullptr;
    int wakes_;
    pid_t owner_;
    std::mutex mutex_;
    std::condition_variable work_, done_;
    std::deque<Job> jobs_;
    std::vector<Event> spare_;
    std::uint64_t put_ = 0;
    std::atomic<std::uint64_t> asked_{0}, hurried_{0};
    std::atomic<int> failed_{0};
    bool closing_ = false;
    std::uint64_t numbers_;
    volatile std::uint64_t* flag_;
    std::uint64_t last_ = 0;  // the number of the last portion, without end
    Headway headway_;
    std::thread thread_;
};

}  // namespace everstep
