// Steps over MPI, made of messages from rank to rank rather than of MPI's collectives: so a rank
// knows which rank it waits for, sizes and steps are compared before bytes are taken, and a message
// may be longer than an int can say.
//
//   a step     a head to every other rank (which step, how many bytes), then its bytes in pieces
//   control    an own channel for words that may come at any time: "I give up, because ...", and
//              "I am through, after so many steps", which a rank says before it ends
//
// Everything is non-blocking; one loop looks at what has come, at the control channel and at the
// clock. What is still under way after a failure stays alive until the process ends, because MPI
// may yet write to it.
#include "fp4moe/moe/exchange/mpi.hpp"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/thrown.hpp"

namespace fp4moe::moe::exchange {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kHeadTag = 1, kBytesTag = 2;     // of steps
constexpr int kAbortTag = 1, kThroughTag = 2;  // of the control channel
constexpr std::uint64_t kPiece = std::uint64_t{1} << 30;
constexpr std::size_t kLongestWords = 2000;  // short enough to travel without the other's help

struct Head {
  std::uint64_t number = 0;  // of the step
  std::uint64_t bytes = 0;
  std::uint64_t to_all = 0;
  std::array<char, 40> step{};  // its name, or the beginning of it
};

struct Notice {
  std::int64_t value = 0;  // an ErrorCode, or a number of steps
  std::array<char, kLongestWords> words{};
};

template <std::size_t N>
void put(std::string_view words, std::array<char, N>& to) {
  std::copy_n(words.begin(), std::min(words.size(), N - 1), to.begin());
}
template <std::size_t N>
std::string_view get(const std::array<char, N>& from) {
  const auto end = std::ranges::find(from, '\0');
  return {from.data(), static_cast<std::size_t>(end - from.begin())};
}

Result<Done> check_mpi(int code, std::string_view action) {
  if (code == MPI_SUCCESS) return Done{};
  std::array<char, MPI_MAX_ERROR_STRING> words{};
  int length = 0;
  MPI_Error_string(code, words.data(), &length);
  return error(ErrorCode::failed, "mpi.failed",
               fmt::format("{} failed: {}", action,
                           std::string_view(words.data(), static_cast<std::size_t>(length))));
}

Error not_started(std::chrono::milliseconds deadline) {
  return error(ErrorCode::failed, "mpi.start", "MPI does not start: not all ranks came")
      .expects(fmt::format("every rank of mpirun in MPI within {:.3g} s",
                           static_cast<double>(deadline.count()) / 1000.0),
               "at least one that died, hangs or does not use MPI")
      .try_this(
          "Start the same command on all ranks; if they are only slow, raise the deadline "
          "(--deadline)");
}

Error not_ended(std::chrono::milliseconds deadline) {
  return error(ErrorCode::failed, "mpi.end", "MPI does not end: not all ranks came to its end")
      .expects(fmt::format("every rank at its end within {:.3g} s",
                           static_cast<double>(deadline.count()) / 1000.0),
               "at least one that died or hangs")
      .try_this("If the ranks are only slow, raise the deadline (--deadline)");
}

// Looks at the clock while MPI waits for all ranks, as it does when it starts and ends.
class Watch {
 public:
  // Errors: thread.exhausted, as an exception.
  Watch(const std::function<void(const Error&)>& on_stuck, std::chrono::milliseconds deadline,
        Error (*late)(std::chrono::milliseconds))
      : on_stuck_(on_stuck), deadline_(deadline), late_(late) {
    if (on_stuck_) thread_ = std::thread([this] { look(); });
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() {
    {
      const std::lock_guard lock(mutex_);
      is_through_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  // An exception on a thread of its own would abort. Without memory for an error, its words are
  // fixed.
  void look() noexcept {
    try {
      wait_for_end();
    } catch (const std::exception&) {
      constexpr std::string_view kWords =
          "fp4moe: out of memory while MPI waits for other ranks [memory.exhausted]\n";
      [[maybe_unused]] const auto written = write(STDERR_FILENO, kWords.data(), kWords.size());
      std::_Exit(static_cast<int>(ErrorCode::exhausted));
    }
  }

  void wait_for_end() {
    constexpr auto kLook = std::chrono::milliseconds(100);  // between two checks for an interrupt
    const auto deadline = Clock::now() + deadline_;
    std::unique_lock lock(mutex_);
    while (!changed_.wait_until(lock, std::min(deadline, Clock::now() + kLook),
                                [this] { return is_through_; })) {
      if (const auto fine = check_interrupt(); !fine) return on_stuck_(fine.why());
      if (Clock::now() >= deadline) return on_stuck_(late_(deadline_));
    }
  }

  const std::function<void(const Error&)>& on_stuck_;
  std::chrono::milliseconds deadline_;
  Error (*late_)(std::chrono::milliseconds);
  std::mutex mutex_{};
  std::condition_variable changed_{};
  bool is_through_ = false;
  std::thread thread_{};
};

// All that MPI may touch while a step is under way.
struct Flight {
  Parcel parcel{};  // moved here when the step fails
  std::vector<Head> out{}, in{};
  std::vector<MPI_Request> sends{};
  std::vector<MPI_Request> heads{};               // one per rank
  std::vector<std::vector<MPI_Request>> bytes{};  // pieces from each rank
  std::vector<bool> is_through{};                 // everything from this rank is here
};

// Yields the CPU after a while: ranks may outnumber the cores.
class Patience {
 public:
  void wait() {
    if (++idle_ < 100) return;
    if (idle_ < 400) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(idle_ < 2000 ? 50 : 500));
  }
  void reset() { idle_ = 0; }

 private:
  int idle_ = 0;
};

class MpiRank final : public Communicator {
 public:
  MpiRank(MPI_Comm steps, MPI_Comm control, const MpiOptions& options, std::uint64_t rank,
          std::uint64_t size)
      : Communicator(rank, size),
        steps_(steps),
        control_(control),
        options_(options),
        through_(size) {
    through_[rank] = 0;
  }
  ~MpiRank() override {
    try {
      close();
    } catch (const std::exception&) {  // no memory to tell the others: mpirun notices
      leave_in_flight();
    }
  }
  std::string_view name() const override { return "mpi"; }

 protected:
  Result<Done> carry(const Step& step) override {
    ++number_;
    auto flight = std::make_unique<Flight>();
    Result<Done> done = begin(step, *flight);
    if (done) done = complete(step, *flight);
    if (done) return done;
    // Others may wait for this rank, which takes no further step.
    is_broken_ = true;
    if (!heard_) notify(kAbortTag, static_cast<std::int64_t>(done.why().code), text(done.why()));
    flight->parcel = std::move(step.parcel);
    kept_.push_back(std::move(flight));
    return done;
  }

  void tell_others(const Error& why) override {
    is_broken_ = true;
    notify(kAbortTag, static_cast<std::int64_t>(why.code), text(why));
  }

 private:
  Result<Done> begin(const Step& step, Flight& flight) const {
    flight.out.resize(size());
    flight.in.resize(size());
    flight.heads.assign(size(), MPI_REQUEST_NULL);
    flight.bytes.resize(size());
    flight.is_through.assign(size(), false);
    flight.is_through[rank()] = true;
    for (std::uint64_t r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      const int peer = static_cast<int>(r);
      if (auto done = check_mpi(MPI_Irecv(&flight.in[r], sizeof(Head), MPI_BYTE, peer, kHeadTag,
                                          steps_, &flight.heads[r]),
                                "receiving the head of a step");
          !done)
        return done;
      const auto bytes = step.outgoing(r);
      flight.out[r] = {number_, bytes.size(), step.to_all ? 1u : 0u, {}};
      put(step.parcel.step, flight.out[r].step);
      if (auto done = send(&flight.out[r], sizeof(Head), {peer, kHeadTag}, flight); !done)
        return done;
      for (std::uint64_t at = 0; at < bytes.size(); at += kPiece)
        if (auto done = send(bytes.data() + at, std::min(kPiece, bytes.size() - at),
                             {peer, kBytesTag}, flight);
            !done)
          return done;
    }
    return Done{};
  }

  struct Address {
    int peer = 0, tag = 0;
  };
  Result<Done> send(const void* from, std::uint64_t bytes, Address to, Flight& flight) const {
    flight.sends.push_back(MPI_REQUEST_NULL);
    return check_mpi(MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, to.peer, to.tag, steps_,
                               &flight.sends.back()),
                     "sending");
  }

  Result<Done> complete(const Step& step, Flight& flight) {
    auto last_progress = Clock::now();
    Patience patience;
    while (true) {
      bool all = true, moved = false;
      for (std::uint64_t r = 0; r < size(); ++r) {
        if (flight.is_through[r]) continue;
        if (const auto looked = look(step, flight, r, moved); !looked) return looked.why();
        all = all && flight.is_through[r];
      }
      int sent = 0;
      if (auto done = check_mpi(MPI_Testall(static_cast<int>(flight.sends.size()),
                                            flight.sends.data(), &sent, MPI_STATUSES_IGNORE),
                                "sending");
          !done)
        return done;
      if (all && sent != 0) return Done{};
      if (const auto fine = listen(); !fine) return fine.why();
      if (moved) {
        last_progress = Clock::now();
        patience.reset();
        continue;
      }
      if (const auto fine = still_hopeful(step, flight, last_progress); !fine) return fine.why();
      patience.wait();
    }
  }

  // The message of one rank: its head first, then as many bytes as that says.
  Result<Done> look(const Step& step, Flight& flight, std::uint64_t from, bool& moved) const {
    int flag = 0;
    if (flight.heads[from] != MPI_REQUEST_NULL) {
      if (auto done =
              check_mpi(MPI_Test(&flight.heads[from], &flag, MPI_STATUS_IGNORE), "receiving");
          !done || flag == 0)
        return done;
      moved = true;
      const Head& head = flight.in[from];
      const Head& mine = flight.out[from];
      if (head.step != mine.step || head.to_all != mine.to_all || head.number != mine.number)
        return not_the_same_step(from, step.parcel.step, get(head.step));
      const auto place = step.incoming(from);
      if (head.bytes != place.size())
        return not_the_same_size(from, step.parcel.step, place.size(), head.bytes);
      for (std::uint64_t at = 0; at < place.size(); at += kPiece) {
        flight.bytes[from].push_back(MPI_REQUEST_NULL);
        if (auto done = check_mpi(
                MPI_Irecv(place.data() + at, static_cast<int>(std::min(kPiece, place.size() - at)),
                          MPI_BYTE, static_cast<int>(from), kBytesTag, steps_,
                          &flight.bytes[from].back()),
                "receiving");
            !done)
          return done;
      }
    }
    auto& pieces = flight.bytes[from];
    while (!pieces.empty()) {
      if (auto done = check_mpi(MPI_Test(&pieces.back(), &flag, MPI_STATUS_IGNORE), "receiving");
          !done || flag == 0)
        return done;
      pieces.pop_back();
      moved = true;
    }
    flight.is_through[from] = true;
    return Done{};
  }

  Result<Done> still_hopeful(const Step& step, const Flight& flight,
                             Clock::time_point last_progress) const {
    if (const auto fine = check_interrupt(); !fine)
      return error(ErrorCode::interrupted, "comm.interrupted",
                   fmt::format("rank {} was told to stop while it waited in '{}'", rank(),
                               step.parcel.step))
          .try_this("mpirun stops all ranks when one of them dies: its own output says which");
    std::vector<std::uint64_t> missing;
    for (std::uint64_t r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      if (!flight.is_through[r]) missing.push_back(r);
      if (!flight.is_through[r] && through_[r] && *through_[r] < number_)
        return rank_left(r, step.parcel.step);
    }
    if (Clock::now() - last_progress < options_.deadline) return Done{};
    if (missing.empty())  // all came, but a rank does not take what this rank sends
      for (std::uint64_t r = 0; r < size(); ++r)
        if (r != rank()) missing.push_back(r);
    return past_deadline(missing, step.parcel.step, options_.deadline);
  }

  // Reads the control channel; an error when a rank has given up.
  Result<Done> listen() {
    while (true) {
      int flag = 0;
      MPI_Status status{};
      if (auto done = check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, control_, &flag, &status),
                                "probing");
          !done)
        return done;
      if (flag == 0) break;
      Notice notice;
      if (auto done = check_mpi(MPI_Recv(&notice, sizeof notice, MPI_BYTE, status.MPI_SOURCE,
                                         status.MPI_TAG, control_, MPI_STATUS_IGNORE),
                                "receiving a notice");
          !done)
        return done;
      const auto from = static_cast<std::uint64_t>(status.MPI_SOURCE);
      if (status.MPI_TAG == kThroughTag)
        through_[from] = static_cast<std::uint64_t>(notice.value);
      else if (!heard_)
        heard_ = rank_aborted(from, static_cast<ErrorCode>(notice.value), get(notice.words));
    }
    if (heard_) return *heard_;
    return Done{};
  }

  void notify(int tag, std::int64_t value, std::string_view words) {
    notices_.push_back(std::make_unique<Notice>());
    Notice& notice = *notices_.back();
    notice.value = value;
    put(words, notice.words);
    for (std::uint64_t r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      notice_requests_.push_back(MPI_REQUEST_NULL);
      MPI_Isend(&notice, sizeof notice, MPI_BYTE, static_cast<int>(r), tag, control_,
                &notice_requests_.back());
    }
  }

  // A rank ends MPI only together with all others: ending waits for them, and a dead one would
  // never come. So it says that it is through and waits for the same from the rest, for a while.
  void close() {
    notify(kThroughTag, static_cast<std::int64_t>(number_), "");
    constexpr std::chrono::milliseconds kAfterFailure{3'000};
    Patience patience;
    const auto begin = Clock::now();
    const auto all_through = [this] {
      return std::ranges::all_of(through_, [](const auto& steps) { return steps.has_value(); });
    };
    while (!all_through()) {
      if (!listen()) is_broken_ = true;
      if (interrupt_requested()) is_broken_ = true;
      const auto limit =
          is_broken_ ? std::min(kAfterFailure, options_.close_deadline) : options_.close_deadline;
      if (Clock::now() - begin >= limit) break;
      patience.wait();
    }
    if (all_through())
      end();
    else if (!is_broken_ && options_.on_stuck)
      options_.on_stuck(not_ended(options_.close_deadline));
    // Else without ending MPI: mpirun notices and says so.
    leave_in_flight();
  }

  void end() {
    std::optional<Watch> watch;
    try {
      watch.emplace(options_.on_stuck, options_.close_deadline, &not_ended);
    } catch (const std::exception&) {  // no thread available: a stuck rank is not noticed
    }
    MPI_Waitall(static_cast<int>(notice_requests_.size()), notice_requests_.data(),
                MPI_STATUSES_IGNORE);
    MPI_Finalize();
  }

  // MPI's own memory outlives this object, and so must what it points to.
  void leave_in_flight() noexcept {
    for (auto& flight : kept_) [[maybe_unused]] auto* left = flight.release();
    for (auto& notice : notices_) [[maybe_unused]] auto* left = notice.release();
  }

  MPI_Comm steps_, control_;
  MpiOptions options_;
  std::uint64_t number_ = 0;  // of the last step begun
  bool is_broken_ = false;
  std::optional<Error> heard_{};                       // what another rank gave up for
  std::vector<std::optional<std::uint64_t>> through_;  // steps of the ranks that have ended
  std::vector<std::unique_ptr<Flight>> kept_{};
  std::vector<std::unique_ptr<Notice>> notices_{};
  std::vector<MPI_Request> notice_requests_{};
};

}  // namespace

bool has_mpi() { return true; }

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> words{};
  int length = 0;
  if (MPI_Get_library_version(words.data(), &length) != MPI_SUCCESS) return {};
  const std::string_view line(words.data(), static_cast<std::size_t>(length));
  return std::string(line.substr(0, line.find_first_of(",\n")));
}

Result<std::unique_ptr<Communicator>> open_mpi(const MpiOptions& options) {
  int started = 0;
  MPI_Initialized(&started);
  if (started != 0)
    return usage("mpi.again", "MPI can be started once in the life of a process")
        .try_this("Keep the communicator for as long as ranks are needed");
  std::optional<Watch> watch;
  try {
    watch.emplace(options.on_stuck, options.start_deadline, &not_started);
  } catch (const std::exception&) {  // no thread to be had
    return thrown_error();
  }
  int threads = 0;
  if (auto done = check_mpi(
          MPI_Init_thread(options.argc, options.argv, MPI_THREAD_SERIALIZED, &threads), "MPI_Init");
      !done)
    return done.why();
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm steps = MPI_COMM_NULL, control = MPI_COMM_NULL;
  for (MPI_Comm* result : {&steps, &control})
    if (auto done = check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, result), "MPI_Comm_dup"); !done)
      return done.why();
  return std::unique_ptr<Communicator>(std::make_unique<MpiRank>(
      steps, control, options, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(size)));
}

}  // namespace fp4moe::moe::exchange
