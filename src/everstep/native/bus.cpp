#include "bus.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <string>

namespace everstep {
namespace {

// How often to look whether training has come far enough, and whether a portion has arrived; after so many glances in
// vain, whether the driver has failed and it never will.
constexpr auto kLook = std::chrono::microseconds(40);
constexpr auto kGlance = std::chrono::microseconds(10);
constexpr unsigned kPatience = 64;
// What each piece of a portion takes besides its bytes, and how much of an estimate is what was seen last.
constexpr double kPieceSeconds = 2e-6;
constexpr double kLearn = 0.125;

// The driver's own numbers.
constexpr int kNotReady = 600;
constexpr unsigned kNoTiming = 2;
constexpr int kStreamOrder = 1;
constexpr int kRelaxed = 2;

struct Attributes {
    int order;
    int source[2];
    int target[2];
    unsigned flags;
};

// What is used of libcuda, found when it is first needed: the package is built and runs without CUDA as well.
struct Driver {
    int (*context_get)(void**);
    int (*context_set)(void*);
    int (*event_create)(Event*, unsigned);
    int (*event_destroy)(Event);
    int (*event_record)(Event, Stream);
    int (*event_query)(Event);
    int (*stream_wait)(Stream, Event, unsigned);
    int (*stream_write)(Stream, std::uint64_t, std::uint64_t, unsigned);
    int (*copy)(void*, std::uint64_t, std::size_t, Stream);
    int (*batch)(std::uint64_t*, std::uint64_t*, std::size_t*, std::size_t, Attributes*, std::size_t*, std::size_t,
                 Stream);
    int (*capture_mode)(int*);

    Driver() {
        void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        if (!library) throw std::runtime_error("libcuda.so.1 was not found: there is no CUDA driver here.");
        const auto find = [library](auto& call, const char* name, bool must = true) {
            call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(dlsym(library, name));
            if (!call && must) throw std::runtime_error(std::string("the CUDA driver has no ") + name + ".");
        };
        find(context_get, "cuCtxGetCurrent");
        find(context_set, "cuCtxSetCurrent");
        find(event_create, "cuEventCreate");
        find(event_destroy, "cuEventDestroy_v2");
        find(event_record, "cuEventRecord");
        find(event_query, "cuEventQuery");
        find(stream_wait, "cuStreamWaitEvent");
        find(stream_write, "cuStreamWriteValue64_v2");
        find(copy, "cuMemcpyDtoHAsync_v2");
        find(batch, "cuMemcpyBatchAsync_v2", false);  // CUDA 13
        find(capture_mode, "cuThreadExchangeStreamCaptureMode");
    }
};

const Driver& driver() {
    static const Driver found;
    return found;
}

[[noreturn]] void refuse(int code) {
    throw std::runtime_error("the CUDA driver refused a copy (error " + std::to_string(code) + ").");
}

void check(int code) {
    if (code) refuse(code);
}

}  // namespace

void Headway::asked(Clock::duration took) {
    const double found = std::chrono::duration<double>(took).count();
    asking_seconds_ += (found - asking_seconds_) * kLearn;
}

void Headway::left(Clock::time_point now, std::size_t nbytes, std::size_t pieces) {
    left_ = now;
    bytes_ = static_cast<double>(nbytes);
    pieces_ = static_cast<double>(pieces);
}

void Headway::arrived(Clock::time_point now) {
    const double seconds = std::chrono::duration<double>(now - left_).count() - kPieceSeconds * pieces_;
    const double found = std::max(seconds, 0.0) / bytes_;
    seconds_per_byte_ += (found - seconds_per_byte_) * (seconds_per_byte_ > 0 ? kLearn : 1.0);
}

// Never more than two are asked for: the device would turn to nobody else.
Clock::time_point Headway::due() const {
    if (seconds_per_byte_ <= 0) return Clock::time_point::max();
    const double lead = std::chrono::duration<double>(2 * kGlance).count() + asking_seconds_;
    const std::chrono::duration<double> wait(std::max(0.0, travel() - lead));
    return left_ + std::chrono::duration_cast<Clock::duration>(wait);
}

double Headway::travel() const { return seconds_per_byte_ * bytes_ + kPieceSeconds * pieces_; }

Copies::Copies(std::vector<std::uint64_t> places, std::vector<std::uint64_t> sources, std::vector<std::size_t> sizes) {
    if (places.size() != sources.size() || places.size() != sizes.size())
        throw std::invalid_argument("places, sources and sizes must be equally many.");
    lists = std::make_shared<const Lists>(Lists{std::move(places), std::move(sources), std::move(sizes)});
}

Bus::Bus(std::uintptr_t stream, int wakes, std::uint64_t numbers, std::uint64_t flag)
    : stream_(reinterpret_cast<Stream>(stream)), wakes_(wakes), owner_(getpid()), numbers_(numbers),
      flag_(reinterpret_cast<volatile std::uint64_t*>(flag)) {
    check(driver().context_get(&context_));
    thread_ = std::thread(&Bus::run, this);
}

Bus::~Bus() { close(); }

std::uint64_t Bus::copy(const Copies& copies, std::uint64_t address, std::uintptr_t training, std::size_t portion) {
    if (!portion) throw std::invalid_argument("a portion has at least one byte.");
    refuse_if_failed();
    Job job{.copies = copies.lists, .address = address, .portion_bytes = portion};
    {
        const std::lock_guard lock(mutex_);
        if (!spare_.empty()) {
            job.after = spare_.back();
            spare_.pop_back();
        }
    }
    if (!job.after) job.after = event();
    check(driver().event_record(job.after, reinterpret_cast<Stream>(training)));
    return put(std::move(job));
}

std::uint64_t Bus::write(std::uint64_t address, std::uint64_t value) {
    refuse_if_failed();
    return put(Job{.address = address, .value = value});
}

void Bus::hurry(std::uint64_t number) {
    std::unique_lock lock(mutex_);
    number = std::min(number, put_);
    if (hurried_.load() < number) hurried_.store(number);
    done_.wait(lock, [&] { return asked_.load() >= number; });
    lock.unlock();
    refuse_if_failed();
}

void Bus::close() {
    if (getpid() != owner_) {  // a fork: the thread is not here
        if (thread_.joinable()) thread_.detach();
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        closing_ = true;
        hurried_.store(std::numeric_limits<std::uint64_t>::max());
    }
    work_.notify_all();
    if (!thread_.joinable()) return;
    thread_.join();
    for (const Event each : spare_) driver().event_destroy(each);
}

std::uint64_t Bus::put(Job job) {
    const std::lock_guard lock(mutex_);
    if (closing_) throw std::runtime_error("nothing travels any more: the bus is closed.");
    job.number = ++put_;
    jobs_.push_back(std::move(job));
    work_.notify_one();
    return put_;
}

void Bus::run() {
    pthread_setname_np(pthread_self(), "everstep-bus");
    prctl(PR_SET_TIMERSLACK, 1UL);  // else the kernel may add fifty microseconds to a sleep
    int relaxed = kRelaxed;  // a CUDA graph that another thread captures is not disturbed by what this one asks
    int code = driver().context_set(context_);
    code = code ? code : driver().capture_mode(&relaxed);
    if (code) failed_.store(code);
    for (;;) {
        std::unique_lock lock(mutex_);
        work_.wait(lock, [&] { return closing_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        Job job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        // Where one has failed, none after it may say that it arrived.
        if (!failed_.load() && (code = perform(job))) failed_.store(code);
        lock.lock();
        if (job.after) spare_.push_back(job.after);
        asked_.store(job.number);
        lock.unlock();
        done_.notify_all();
        const std::uint64_t one = 1;
        if (job.copies && ::write(wakes_, &one, sizeof one) < 0) continue;  // nobody listens
    }
}

int Bus::perform(const Job& job) {
    if (!job.copies) return driver().stream_write(stream_, job.address, job.value, 0);
    if (const int code = await(job)) return code;
    return send(job);
}

// What is to be copied must have been made; in a hurry the device waits for that, and the thread does not.
int Bus::await(const Job& job) {
    while (!hurried(job)) {
        const int code = driver().event_query(job.after);
        if (code == 0) break;
        if (code != kNotReady) return code;
        std::this_thread::sleep_for(kLook);
    }
    return driver().stream_wait(stream_, job.after, 0);
}

int Bus::send(const Job& job) {
    const Copies::Lists& copies = *job.copies;
    std::vector<Piece> portion;
    std::size_t room = job.portion_bytes;
    for (std::size_t at = 0; at < copies.sizes.size(); ++at) {
        for (std::size_t sent = 0; sent < copies.sizes[at];) {
            const std::size_t left = copies.sizes[at] - sent;
            const std::size_t nbytes = hurried(job) ? left : std::min(left, room);
            portion.push_back({job.address + copies.places[at] + sent, copies.sources[at] + sent, nbytes});
            sent += nbytes;
            room -= std::min(room, nbytes);
            if (room || hurried(job)) continue;
            if (const int code = queue(portion, job)) return code;
            room = job.portion_bytes;
        }
    }
    return queue(portion, job);
}

// As the last portion is about to arrive. Any later, and the bus would stand still; any sooner, and others would not get
// their turn between the two.
int Bus::queue(std::vector<Piece>& portion, const Job& job) {
    if (portion.empty()) return 0;
    int code = arrived(job, headway_.due());
    if (code && code != kNotReady) return code;
    const auto began = Clock::now();
    if ((code = ask(portion))) return code;
    headway_.asked(Clock::now() - began);
    code = arrived(job, Clock::time_point::max());  // from then on this one travels
    if (code && code != kNotReady) return code;
    std::size_t nbytes = 0;
    for (const Piece& piece : portion) nbytes += piece.nbytes;
    headway_.left(Clock::now(), nbytes, portion.size());
    ++last_;
    portion.clear();
    return 0;
}

// Whether the last portion has arrived, or kNotReady when it is that late, and in a hurry at once.
int Bus::arrived(const Job& job, Clock::time_point end) {
    for (unsigned looks = 0;; ++looks) {
        if ((*flag_ - last_) % kNumbers < kNumbers / 2) {  // it, or the one behind it
            if (looks) headway_.arrived(Clock::now());
            return 0;
        }
        if (hurried(job) || Clock::now() >= end) return kNotReady;
        if (looks % kPatience == kPatience - 1) {
            const int code = driver().event_query(job.after);
            if (code && code != kNotReady) return code;
        }
        std::this_thread::sleep_for(kGlance);
    }
}

// In the order of the stream, its number comes last.
int Bus::ask(const std::vector<Piece>& portion) {
    int code = 0;
    if (driver().batch) {
        std::vector<std::uint64_t> targets, sources;
        std::vector<std::size_t> sizes;
        for (const Piece& piece : portion) {
            targets.push_back(piece.target);
            sources.push_back(piece.source);
            sizes.push_back(piece.nbytes);
        }
        Attributes attributes{kStreamOrder, {0, 0}, {0, 0}, 0};
        std::size_t first = 0;
        code = driver().batch(targets.data(), sources.data(), sizes.data(), portion.size(), &attributes, &first, 1,
                              stream_);
    } else {
        for (const Piece& piece : portion)
            code = code ? code : driver().copy(reinterpret_cast<void*>(piece.target), piece.source, piece.nbytes, stream_);
    }
    const std::uint64_t number = (last_ + 1) % kNumbers * sizeof(std::uint64_t);
    return code ? code : driver().copy(const_cast<std::uint64_t*>(flag_), numbers_ + number, sizeof(std::uint64_t), stream_);
}

void Bus::refuse_if_failed() {
    if (const int code = failed_.load()) refuse(code);
}

Event Bus::event() {
    Event made = nullptr;
    check(driver().event_create(&made, kNoTiming));
    return made;
}

}  // namespace everstep
