// Threads that walk through the phases of one function together, sharing out the tasks of each.
//
// A phase is complete when its tasks are, not when every thread has come: a thread that the system
// keeps from running holds up the others only while it is inside a task, and skips what was done
// without it when it comes back. On a machine with other work a barrier of all threads made a step
// of 4 ms take 60. Invariant: results never depend on who ran what.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>
#include <immintrin.h>

class Pool;

// One thread's way through the phases of a run. All threads meet the same phases in the same order.
class Crew {
  public:
    Crew(Pool& pool, int thread) : thread(thread), pool_(pool) {}

    // Call `work(first, last)` for disjoint ranges of at most `grain` tasks that cover 0 to `count`
    // on all threads together; returns when all of them are done.
    template <class Work> void phase(int64_t count, int64_t grain, Work work);
    // The same with a call for each task.
    template <class Each> void each(int64_t count, Each task) {
        phase(count, 1, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) task(i);
        });
    }
    int num_threads() const;

    const int thread;

  private:
    Pool& pool_;
    uint64_t phase_ = 0;
};

class Pool {
  public:
    // Fewer threads where the system gives no more: they only share out what one could do.
    explicit Pool(int num_threads) {
        try {
            for (int i = 1; i < num_threads; ++i) {
                workers_.emplace_back([this, i] { work(i); });
                ++num_threads_;
            }
        } catch (const std::exception&) {
        }
    }

    ~Pool() {
        {
            std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        wake_.notify_all();
        for (auto& worker : workers_) worker.join();
    }

    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int num_threads() const { return num_threads_; }

    // Run `body(crew)` on this thread and on those that wake up in time.
    void run(const std::function<void(Crew&)>& body) {
        place_.store(0, std::memory_order_relaxed);
        done_.store(0, std::memory_order_relaxed);
        if (num_threads_ > 1) {
            {
                std::lock_guard lock(mutex_);
                body_ = &body;
                ++run_;
            }
            wake_.notify_all();
        }
        Crew crew(*this, 0);
        body(crew);
        if (num_threads_ == 1) return;
        {
            std::lock_guard lock(mutex_);
            body_ = nullptr;  // who wakes up only now has nothing to do
        }
        pause_while([this] { return inside_.load(std::memory_order_acquire) != 0; });
    }

  private:
    friend class Crew;

    static constexpr int SPINS = 4000;  // about 50 us; then others may run
    static constexpr int PLACE_BITS = 40;

    template <class Condition> static void pause_while(Condition waiting) {
        for (int spins = 0; waiting(); ++spins) {
            if (spins < SPINS) _mm_pause(); else std::this_thread::yield();
        }
    }

    void work(int thread) {
        uint64_t seen = 0;
        std::unique_lock lock(mutex_);
        while (true) {
            wake_.wait(lock, [&] { return stopping_ || (run_ != seen && body_); });
            if (stopping_) return;
            seen = run_;
            const std::function<void(Crew&)>& body = *body_;
            inside_.fetch_add(1, std::memory_order_relaxed);
            lock.unlock();
            Crew crew(*this, thread);
            body(crew);
            inside_.fetch_sub(1, std::memory_order_release);
            lock.lock();
        }
    }

    int num_threads_ = 1;
    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_;
    const std::function<void(Crew&)>* body_ = nullptr;
    uint64_t run_ = 0;
    bool stopping_ = false;
    alignas(64) std::atomic<uint64_t> place_{0};  // the phase, and below it the next task
    alignas(64) std::atomic<int64_t> done_{0};    // tasks of the phase
    alignas(64) std::atomic<int> inside_{0};      // workers in the body
};

inline int Crew::num_threads() const { return pool_.num_threads_; }

template <class Work> void Crew::phase(int64_t count, int64_t grain, Work work) {
    const uint64_t here = phase_++ << Pool::PLACE_BITS, next = phase_ << Pool::PLACE_BITS;
    uint64_t place = pool_.place_.load(std::memory_order_acquire);
    if (count == 0) {
        uint64_t expected = here;
        pool_.place_.compare_exchange_strong(expected, next, std::memory_order_acq_rel);
        return;
    }
    while (place >= here && place < next) {
        const int64_t first = static_cast<int64_t>(place - here);
        if (first >= count) {
            Pool::pause_while([&] {
                place = pool_.place_.load(std::memory_order_acquire);
                return place < next;
            });
            return;
        }
        const int64_t last = first + grain < count ? first + grain : count;
        if (!pool_.place_.compare_exchange_weak(place, here + last, std::memory_order_acq_rel)) {
            continue;
        }
        work(first, last);
        const int64_t mine = last - first;
        if (pool_.done_.fetch_add(mine, std::memory_order_acq_rel) + mine == count) {
            pool_.done_.store(0, std::memory_order_relaxed);
            pool_.place_.store(next, std::memory_order_release);
            return;
        }
        place = pool_.place_.load(std::memory_order_acquire);
    }
}
