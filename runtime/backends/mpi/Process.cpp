//===- Process.cpp - this process among those of mpirun -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Process.h"
#include "Termination.h"

#include "meshwright/runtime/include/Environment.h"
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

/// Tags of hand-shakes before a communicator is made, and of making it: one a
/// stream.
constexpr int kHandshakeTag = 16, kMakingTag = 4096;

constexpr char kNoSignOfLife[] = ": its process has given no sign of life for ";

/// How many processes the launcher has started, or -1 if there is none that says.
int64_t launchedProcesses() {
  for (const char *name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char *text = std::getenv(name))
      return std::strtoll(text, nullptr, 10);
  return std::getenv("PMIX_RANK") ? -1 : 1;
}

/// What the user is to type.
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

/// MPI's own beginning and end wait for all processes, and nothing interrupts them:
/// what takes too long there ends this one.
class Alarm {
public:
  explicit Alarm(const char *place) : place(place), thread([this] { watch(); }) {}
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
    // Many processes may need a while on few cores.
    double limit = std::max(10 * defaultTimeout(), 30.0);
    std::unique_lock<std::mutex> lock(mutex);
    if (over.wait_for(lock, std::chrono::duration<double>(std::min(limit, 1e9)),
                      [this] { return isOver; }))
      return;
    std::fprintf(stderr, "error: backend 'mpi': another process has not come to %s within %s s\n",
                 place, formatSeconds(limit).c_str());
    std::fflush(nullptr);
    _exit(1);
  }

  const char *place;
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
  // MPI's own plug-ins look for its symbols among the process's, and this library
  // was opened on its own.
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
    error = "this MPI gives threads level " + std::to_string(provided) + ", expected " +
            std::to_string(MPI_THREAD_MULTIPLE) +
            " (MPI_THREAD_MULTIPLE): streams communicate from threads of their own";
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
  if (!shareTable(error))
    return false;
  // Whoever ends MPI, and when: what belongs to this communicator goes first.
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

bool Process::shareTable(std::string &error) {
  MPI_Comm here = MPI_COMM_NULL;
  MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
  int place = 0, count = 1;
  MPI_Comm_rank(here, &place);
  MPI_Comm_size(here, &count);
  size_t bytes = sizeof(Table) + count * sizeof(Seat);
  char name[64] = "";
  int file = -1;
  if (place == 0) {
    std::snprintf(name, sizeof(name), "/meshwright-%d-%lld", int(getpid()),
                  (long long)(monotonicNanoseconds()));
    file = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    // Written, not cut to length: where there is no room that fails here, and not
    // with a bus error later.
    if (file >= 0 && posix_fallocate(file, 0, off_t(bytes)) != 0) {
      close(file);
      file = -1;
    }
  }
  MPI_Bcast(name, sizeof(name), MPI_CHAR, 0, here);
  if (place != 0)
    file = shm_open(name, O_RDWR, 0600);
  void *memory =
      file < 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  int failed = errno;
  if (file >= 0)
    close(file);
  int fine = memory != MAP_FAILED, everywhere = 0;
  MPI_Allreduce(&fine, &everywhere, 1, MPI_INT, MPI_MIN, all);
  if (place == 0)
    shm_unlink(name);
  if (!everywhere) {
    error = fine ? "another process cannot share memory with its neighbours"
                 : std::string("no memory to share with other processes: ") + std::strerror(failed);
    return false;
  }
  // Fresh pages are zeros: nobody has failed.
  table = static_cast<Table *>(memory);
  seat = &table->seats[place];
  seat->pid = getpid();
  seat->heartbeat = monotonicNanoseconds();
  seat->lastOp = -1;
  machine.resize(count);
  MPI_Allgather(&rank, 1, MPI_INT64_T, machine.data(), 1, MPI_INT64_T, here);
  MPI_Barrier(here);
  MPI_Comm_free(&here);
  peers.assign(count, -1);
  for (int i = 0; i < count; ++i)
    if (i != place)
      peers[i] = int(syscall(SYS_pidfd_open, pid_t(table->seats[i].pid), 0));
  return true;
}

/// Whether all processes have come to their end, none of them by a failure.
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

/// At exit, or where somebody else ends MPI. After a failure MPI cannot end: it would
/// wait for the dead, and mpirun, where some processes are in MPI_Finalize while
/// others go without, may crash or never end.
void Process::finish(bool endsMpi) {
  if (hasFinished)
    return;
  hasFinished = true;
  seat->hasLeft = 1;
  bool allCome = meetAtEnd();
  stopping = true;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(wakeUp, &one, sizeof(one));
  watcher.join();
  if (!allCome) {
    if (!seat->hasTold)
      awaitWitnesses();
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

/// "rank 2 (last at dist.all_gather (m.mlir:7))".
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
    const Seat *seat = findSeat(peer);
    if (!seat)
      text += " (on another machine)";
    else if (int64_t op = seat->lastOp; op >= 0)
      text += " (last at " + world.getOpName(op) + ")";
  }
  return text;
}

/// A rank of this machine that has given no sign of life for that long; else -1.
int64_t Process::findSilent(double timeout) const {
  int64_t limit = monotonicNanoseconds() - int64_t(timeout * 1e9);
  for (size_t place = 0; place < machine.size(); ++place)
    if (!table->seats[place].hasLeft && table->seats[place].heartbeat < limit)
      return machine[place];
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
  auto begin = Clock::now();
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
    if (world.hasFailed())
      return false;
    auto waited = Clock::now() - begin;
    if (waited < spin) {
      sched_yield();
      continue;
    }
    double seconds = std::chrono::duration<double>(waited).count();
    if (timeout > 0 ? seconds > timeout : seconds > world.getTimeout()) {
      // Without a limit of its own the wait lasts while the others work on what
      // comes before; those of other machines are not seen doing so.
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
    // The kernel may else be 50 us late. Sleeping for a share of the time that has
    // passed costs that share at most, and leaves the processor to who computes.
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
  // Making one blocks within MPI. So the members first make sure of each other:
  // only one that dies in this very moment can keep the others there.
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
