//===- Process.cpp - this process among those of mpirun -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Process.h"
#include "meshwright/runtime/src/process/Termination.h"

#include "meshwright/runtime/include/Environment.h"
#include "meshwright/runtime/include/Interrupts.h"
#include "meshwright/runtime/include/WholeFile.h"
#include "meshwright/runtime/include/World.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace meshwright::rt::mpi {

namespace {

/// Tags of the handshake before a communicator is created, and of its creation. The stream is
/// added to them.
constexpr int kHandshakeTag = 16, kMakingTag = 4096;

constexpr char kNoSignOfLife[] = ": its process has given no sign of life for ";

/// Returns the number of processes that the launcher started: 1 without a launcher, -1 if it
/// does not say.
int64_t launchedProcesses() {
  for (const char *name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char *text = std::getenv(name))
      return std::strtoll(text, nullptr, 10);
  return std::getenv("PMIX_RANK") ? -1 : 1;
}

/// Returns an error with the command that the user should type.
std::string adviseLaunch(int64_t numRanks, int64_t processes) {
  auto plural = [](int64_t count, const char *word, const char *ending) {
    return std::to_string(count) + " " + word + (count == 1 ? "" : ending);
  };
  return "the program has " + plural(numRanks, "rank", "s") + ", and there " +
         (processes == 1 ? "is " : "are ") + plural(processes, "process", "es") +
         ": start it by 'mpirun -np " + std::to_string(numRanks) + " ...'";
}

std::string formatSeconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", seconds);
  return text;
}

/// Ends this process if MPI's initialisation or finalisation takes too long. Both wait for all
/// processes and cannot be interrupted.
class Alarm {
public:
  explicit Alarm(const char *call) : call(call), thread([this] { watch(); }) {}
  ~Alarm() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      isOver = true;
    }
    over.notify_one();
    thread.join();
  }

private:
  void watch() {
    // Many processes on few cores may take a while.
    double limit = std::max(10 * defaultTimeout(), 30.0);
    std::unique_lock<std::mutex> lock(mutex);
    if (over.wait_for(lock, std::chrono::duration<double>(std::min(limit, 1e9)),
                      [this] { return isOver; }))
      return;
    std::fprintf(stderr, "error: backend 'mpi': another process has not come to %s within %s s\n",
                 call, formatSeconds(limit).c_str());
    std::fflush(nullptr);
    _exit(1);
  }

  const char *call;
  std::mutex mutex;
  std::condition_variable over;
  bool isOver = false;
  std::thread thread;
};

} // namespace

//===----------------------------------------------------------------------===//
// Beginning and end
//===----------------------------------------------------------------------===//

Process *Process::get(int64_t numRanks, std::string &error) {
  static std::mutex mutex;
  static Process *process = nullptr;
  static std::string refusal;
  std::lock_guard<std::mutex> lock(mutex);
  if (!refusal.empty()) {
    error = refusal;
    return nullptr;
  }
  if (!process) {
    int64_t launched = launchedProcesses();
    if (launched > 0 && launched != numRanks) {
      error = adviseLaunch(numRanks, launched);
      return nullptr;
    }
    // Never destroyed: its watching thread and MPI may outlive static objects.
    auto *started = new Process();
    if (!started->start(numRanks, refusal)) {
      error = refusal;
      return nullptr;
    }
    process = started;
    std::atexit([] { process->finish(/*endsMpi=*/!process->isGuest); });
  }
  if (process->size != numRanks) {
    error = adviseLaunch(numRanks, process->size);
    return nullptr;
  }
  return process;
}

bool Process::start(int64_t numRanks, std::string &error) {
  Alarm alarm("MPI's beginning");
  // MPI's plug-ins look up its symbols in the process, but this library was opened with local
  // symbols.
  Dl_info info;
  if (dladdr(reinterpret_cast<const void *>(&MPI_Init_thread), &info) && info.dli_fname)
    dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  int begun = 0, provided = 0;
  MPI_Initialized(&begun);
  isGuest = begun != 0;
  if (begun)
    MPI_Query_thread(&provided);
  else if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
    error = "MPI does not start";
    return false;
  }
  if (provided != MPI_THREAD_MULTIPLE) {
    error = "the level of threads that this MPI gives: expected " +
            std::to_string(MPI_THREAD_MULTIPLE) + " (MPI_THREAD_MULTIPLE), got " +
            std::to_string(provided) + ": streams communicate from threads of their own";
    return false;
  }
  int number = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &number);
  rank = number;
  MPI_Comm_size(MPI_COMM_WORLD, &number);
  size = number;
  if (size != numRanks) {
    error = adviseLaunch(numRanks, size);
    return false;
  }
  for (MPI_Comm *copy : {&all, &making, &news, &ending}) {
    MPI_Comm_dup(MPI_COMM_WORLD, copy);
    MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN);
  }
  if (!shareState(error))
    return false;
  // MPI deletes the attributes of this communicator first when it is finalised, by us or by
  // another library.
  int key = MPI_KEYVAL_INVALID;
  MPI_Comm_create_keyval(
      MPI_COMM_NULL_COPY_FN,
      [](MPI_Comm, int, void *process, void *) {
        static_cast<Process *>(process)->finish(/*endsMpi=*/false);
        return MPI_SUCCESS;
      },
      &key, nullptr);
  MPI_Comm_set_attr(MPI_COMM_SELF, key, this);
  wakeUp = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  watchForTermination(wakeUp);
  watcher = std::thread([this] { watch(); });
  return true;
}

bool Process::shareState(std::string &error) {
  MPI_Comm here = MPI_COMM_NULL;
  MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
  int index = 0, count = 1;
  MPI_Comm_rank(here, &index);
  MPI_Comm_size(here, &count);
  size_t bytes = sizeof(SharedStatus) + count * sizeof(ProcessStatus);
  char name[64] = "";
  int file = -1;
  if (index == 0) {
    std::snprintf(name, sizeof(name), "/meshwright-%s", makeRandomName().c_str());
    file = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    // Allocate the memory now: without room this call fails, whereas a later access would be
    // a bus error.
    if (file >= 0 && posix_fallocate(file, 0, off_t(bytes)) != 0) {
      close(file);
      file = -1;
    }
  }
  MPI_Bcast(name, sizeof(name), MPI_CHAR, 0, here);
  if (index != 0)
    file = shm_open(name, O_RDWR, 0600);
  void *memory =
      file < 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  int failed = errno;
  if (file >= 0)
    close(file);
  int fine = memory != MAP_FAILED, everywhere = 0;
  MPI_Allreduce(&fine, &everywhere, 1, MPI_INT, MPI_MIN, all);
  if (index == 0)
    shm_unlink(name);
  if (!everywhere) {
    error = fine ? "another process cannot share memory with its neighbours"
                 : std::string("no memory to share with other processes: ") + std::strerror(failed);
    return false;
  }
  // Fresh pages are zeros, which is the state without a failure.
  shared = static_cast<SharedStatus *>(memory);
  own = &shared->processes[index];
  own->pid = getpid();
  own->heartbeat = monotonicNanoseconds();
  own->lastOp = -1;
  machine.resize(count);
  MPI_Allgather(&rank, 1, MPI_INT64_T, machine.data(), 1, MPI_INT64_T, here);
  MPI_Barrier(here);
  MPI_Comm_free(&here);
  peers.assign(count, -1);
  for (int i = 0; i < count; ++i)
    if (i != index)
      peers[i] = int(syscall(SYS_pidfd_open, pid_t(shared->processes[i].pid), 0));
  return true;
}

/// Waits until all processes have come to their end. Returns false after a failure of any of
/// them.
bool Process::meetAtEnd() {
  MPI_Request request = MPI_REQUEST_NULL;
  if (hasFailed() || MPI_Ibarrier(ending, &request) != MPI_SUCCESS)
    return false;
  double timeout = defaultTimeout();
  while (true) {
    int done = 0;
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
      return false;
    if (done)
      return true;
    if (hasFailed())
      return false;
    if (int64_t silent = findSilent(timeout); silent >= 0) {
      publish("rank " + std::to_string(silent) + kNoSignOfLife + formatSeconds(timeout) + " s");
      std::fprintf(stderr, "error: %s\n", getError().c_str());
      std::fflush(nullptr);
      _exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Called at exit, or when another library finalises MPI. After a failure MPI is not finalised:
/// it would wait for processes that have died, and mpirun may crash or hang if only some
/// processes call MPI_Finalize.
void Process::finish(bool endsMpi) {
  if (hasFinished)
    return;
  hasFinished = true;
  own->hasLeft = 1;
  bool allCome = meetAtEnd();
  stopping = true;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(wakeUp, &one, sizeof(one));
  watcher.join();
  if (!allCome) {
    if (!own->hasReported)
      awaitReports();
    return;
  }
  Alarm alarm("MPI's end");
  for (auto &[key, communicator] : communicators)
    MPI_Comm_free(&communicator);
  for (MPI_Comm *copy : {&all, &making, &news, &ending})
    MPI_Comm_free(copy);
  if (endsMpi)
    MPI_Finalize();
}

//===----------------------------------------------------------------------===//
// Waiting
//===----------------------------------------------------------------------===//

bool Process::check(World &world, const Caller &caller, int status) {
  if (status == MPI_SUCCESS)
    return true;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  world.fail(caller.rank, caller.op, std::string("MPI: ") + text);
  return false;
}

/// Returns, for example, "rank 2 (last at dist.all_gather (m.mlir:7))".
std::string Process::nameWaitedFor(World &world, const Requests &requests) const {
  std::set<int64_t> waited;
  for (size_t i = 0; i < requests.list.size(); ++i)
    if (requests.list[i] != MPI_REQUEST_NULL && requests.peers[i] >= 0)
      waited.insert(requests.peers[i]);
  if (waited.empty())
    return "other ranks";
  std::string text = waited.size() > 1 ? "ranks" : "rank";
  for (int64_t peer : waited) {
    text += (peer == *waited.begin() ? " " : ", ") + std::to_string(peer);
    const ProcessStatus *other = findStatus(peer);
    if (!other)
      text += " (on another machine)";
    else if (int64_t op = other->lastOp; op >= 0)
      text += " (last at " + world.getOpName(op) + ")";
  }
  return text;
}

/// Returns a rank of this machine whose watching thread has not run for `timeout` seconds, or
/// -1.
int64_t Process::findSilent(double timeout) const {
  int64_t limit = monotonicNanoseconds() - int64_t(timeout * 1e9);
  for (size_t index = 0; index < machine.size(); ++index)
    if (!shared->processes[index].hasLeft && shared->processes[index].heartbeat < limit)
      return machine[index];
  return -1;
}

bool Process::await(World &world, const Caller &caller, Requests &requests, double timeout) {
  int count = int(requests.list.size()), left = 0;
  for (MPI_Request request : requests.list)
    left += request != MPI_REQUEST_NULL;
  if (left == 0)
    return !world.hasFailed();
  std::vector<int> done(count);
  std::vector<MPI_Status> statuses(count);
  auto begin = Clock::now(), asked = begin;
  auto spin = std::chrono::nanoseconds(world.getSpin(caller.stream));
  bool sleeps = false;
  while (true) {
    int completed = 0;
    int status =
        MPI_Testsome(count, requests.list.data(), &completed, done.data(), statuses.data());
    if (status == MPI_ERR_IN_STATUS) {
      for (int i = 0; i < completed; ++i)
        if (statuses[i].MPI_ERROR != MPI_SUCCESS)
          return check(world, caller, statuses[i].MPI_ERROR);
    }
    if (!check(world, caller, status))
      return false;
    if (completed > 0 && (left -= completed) == 0)
      return true;
    if (hasFailed())
      world.fail(getError());
    // Only the thread of a call waits without a timeout.
    if (timeout <= 0 && Clock::now() - asked >= std::chrono::milliseconds(100)) {
      asked = Clock::now();
      if (isInterrupted())
        world.fail(caller.rank, -1, kInterrupted);
    }
    if (world.hasFailed())
      return false;
    auto waited = Clock::now() - begin;
    if (waited < spin) {
      sched_yield();
      continue;
    }
    double seconds = std::chrono::duration<double>(waited).count();
    if (timeout > 0 ? seconds > timeout : seconds > world.getTimeout()) {
      // A wait without a timeout lasts while the other processes are alive. Processes of
      // other machines cannot be observed, so ten times the world's timeout is the limit
      // for them.
      int64_t silent = timeout > 0 ? -1 : findSilent(world.getTimeout());
      bool isOver =
          timeout > 0 || (int64_t(machine.size()) < size && seconds > 10 * world.getTimeout());
      std::string text = formatSeconds(timeout > 0 ? timeout : world.getTimeout());
      if (silent >= 0)
        world.fail("rank " + std::to_string(silent) + kNoSignOfLife + text + " s");
      else if (isOver)
        world.fail(caller.rank, caller.op,
                   std::string("timed out after ") + text + " s waiting for " +
                       nameWaitedFor(world, requests));
      if (silent >= 0 || isOver)
        return false;
    }
    // By default the kernel may wake a thread 50 us late. Sleeping for a fraction of the
    // time waited so far delays the result by at most that fraction, and leaves the
    // processor to threads that compute.
    if (!sleeps)
      prctl(PR_SET_TIMERSLACK, 1000);
    sleeps = true;
    auto pause = std::clamp<Clock::duration>(waited / 16, std::chrono::microseconds(10),
                                             std::chrono::microseconds(timeout > 0 ? 200 : 1000));
    std::this_thread::sleep_for(pause);
  }
}

//===----------------------------------------------------------------------===//
// Communicators
//===----------------------------------------------------------------------===//

MPI_Comm Process::getCommunicator(World &world, const Caller &caller,
                                  const std::vector<int64_t> &ranks) {
  std::pair<int64_t, std::vector<int64_t>> key(caller.stream, ranks);
  {
    std::lock_guard<std::mutex> lock(communicatorsMutex);
    if (auto found = communicators.find(key); found != communicators.end())
      return found->second;
  }
  // Creating a communicator blocks within MPI. So the members first exchange a handshake: then
  // only a process that dies between the two can block the others.
  Requests requests;
  requests.list.reserve(2 * ranks.size());
  int tag = int(caller.stream % 1024);
  for (int64_t peer : ranks) {
    if (peer == rank)
      continue;
    if (!check(world, caller,
               MPI_Irecv(nullptr, 0, MPI_CHAR, int(peer), kHandshakeTag + tag, making,
                         requests.addFor(peer))) ||
        !check(world, caller,
               MPI_Isend(nullptr, 0, MPI_CHAR, int(peer), kHandshakeTag + tag, making,
                         requests.addFor(peer))))
      return MPI_COMM_NULL;
  }
  if (!await(world, caller, requests, world.getTimeout()))
    return MPI_COMM_NULL;
  MPI_Group everybody = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  std::vector<int> numbers(ranks.begin(), ranks.end());
  MPI_Comm_group(making, &everybody);
  MPI_Group_incl(everybody, int(numbers.size()), numbers.data(), &members);
  int status = MPI_Comm_create_group(making, members, kMakingTag + tag, &made);
  MPI_Group_free(&members);
  MPI_Group_free(&everybody);
  if (!check(world, caller, status))
    return MPI_COMM_NULL;
  MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
  std::lock_guard<std::mutex> lock(communicatorsMutex);
  communicators.emplace(std::move(key), made);
  return made;
}

} // namespace meshwright::rt::mpi
