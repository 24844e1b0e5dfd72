// The program as a process: started, watched, killed, measured.
#pragma once
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fp4moe::end_to_end {

class Child {
 public:
  // Starts the program; its output goes to /dev/null. `file_limit` bounds every file it writes.
  explicit Child(std::vector<std::string> arguments, std::uint64_t file_limit = 0) {
    arguments.insert(arguments.begin(), FP4MOE_CLI);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    if (file_limit != 0) {
      signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{file_limit, file_limit};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    execv(FP4MOE_CLI, argv.data());
    _exit(127);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (is_running()) {
      kill(pid_, SIGKILL);
      wait();
    }
  }

  bool has_started() const { return pid_ > 0; }
  bool is_running() const { return pid_ > 0 && !is_done_; }
  void send(int signal) const { kill(pid_, signal); }
  bool poll() {  // true once it has ended
    if (!is_done_ && wait4(pid_, &status_, WNOHANG, &usage_) == pid_) is_done_ = true;
    return is_done_;
  }
  void wait() {
    if (!is_done_) wait4(pid_, &status_, 0, &usage_);
    is_done_ = true;
  }
  // The exit status, or 128 + the signal that ended it.
  int status() {
    wait();
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }
  std::uint64_t peak_bytes() {
    wait();
    return static_cast<std::uint64_t>(usage_.ru_maxrss) * 1024;
  }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  rusage usage_{};
  bool is_done_ = false;
};

inline int run(std::vector<std::string> arguments) { return Child(std::move(arguments)).status(); }

// Waits, without sleeping, until the child has begun to write or has ended.
inline void until_it_writes(Child& child, const std::string& staging) {
  while (!child.poll()) {
    std::error_code ignored;
    if (std::filesystem::exists(staging, ignored)) return;
    sched_yield();
  }
}

}  // namespace fp4moe::end_to_end
