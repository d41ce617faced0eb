//===- Rendezvous.cpp - how processes find each other ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Rendezvous.h"

#include "Processes.h"
#include "meshwright/runtime/src/bundle/Manifest.h"

#include "meshwright/runtime/include/WholeFile.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <fstream>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <optional>
#include <random>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>

namespace meshwright::rt::gpu {

//===----------------------------------------------------------------------===//
// Addresses
//===----------------------------------------------------------------------===//

namespace {

/// Where rank 0 listens: a port of several hosts, which are names of one machine.
struct Address {
  int64_t token = 0;
  int port = 0;
  std::vector<std::string> hosts;

  std::string toText() const {
    std::string text = std::to_string(token) + " " + std::to_string(port);
    for (const std::string &host : hosts)
      text += " " + host;
    return text;
  }
  static std::optional<Address> fromText(const std::string &text) {
    Address address;
    std::istringstream words(text);
    if (!(words >> address.token >> address.port))
      return std::nullopt;
    for (std::string host; words >> host;)
      address.hosts.push_back(host);
    return address;
  }
  /// Tries another host at each attempt: only some may lead to rank 0 from here.
  std::unique_ptr<Wire> connect(size_t attempt) const {
    return hosts.empty() ? nullptr : connectTo(hosts[attempt % hosts.size()], port);
  }
};

} // namespace

static int64_t makeToken() {
  std::random_device random;
  return (int64_t(random()) << 31 ^ int64_t(random())) & INT64_MAX;
}

/// The addresses of this machine.
static std::vector<std::string> listHosts() {
  std::vector<std::string> hosts{"127.0.0.1"};
  ifaddrs *all = nullptr;
  if (getifaddrs(&all) != 0)
    return hosts;
  for (ifaddrs *at = all; at; at = at->ifa_next) {
    if (!at->ifa_addr ||
        (at->ifa_addr->sa_family != AF_INET && at->ifa_addr->sa_family != AF_INET6))
      continue;
    char text[NI_MAXHOST];
    socklen_t size =
        at->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(at->ifa_addr, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0 &&
        std::strcmp(text, "127.0.0.1") != 0 && std::strcmp(text, "::1") != 0)
      hosts.push_back(text);
  }
  freeifaddrs(all);
  return hosts;
}

/// Listens at any port, under an address with a token.
static std::unique_ptr<Listener> openAnywhere(Address &address, std::string &error) {
  std::unique_ptr<Listener> listener = Listener::open(0, "", error);
  if (listener)
    address = {makeToken(), listener->getPort(), listHosts()};
  return listener;
}

/// Writes a file that only this user can read, whole or not at all.
static bool writeSecret(const std::string &path, const std::string &text, std::string &error) {
  std::string part = path + WholeFile::kPartial + makeRandomName();
  int file = open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  bool isFine = file >= 0 && write(file, text.data(), text.size()) == ssize_t(text.size());
  if (file >= 0)
    isFine = close(file) == 0 && isFine;
  if (isFine && std::rename(part.c_str(), path.c_str()) == 0)
    return true;
  error = path + ": " + std::strerror(errno);
  if (file >= 0)
    unlink(part.c_str());
  return false;
}

namespace {

//===----------------------------------------------------------------------===//
// MASTER_ADDR and MASTER_PORT
//===----------------------------------------------------------------------===//

/// A folder of this user for all processes of the machine. Returns an empty string, with an error, if
/// another user may write there.
std::string openUserFolder(std::string &error) {
  const char *runtime = std::getenv("XDG_RUNTIME_DIR"), *temporary = std::getenv("TMPDIR");
  std::string base = runtime && *runtime       ? runtime
                     : temporary && *temporary ? temporary
                                               : "/tmp";
  std::string folder = base + "/meshwright-" + std::to_string(geteuid());
  struct stat status;
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    error = folder + ": " + std::strerror(errno);
  else if (lstat(folder.c_str(), &status) != 0)
    error = folder + ": " + std::strerror(errno);
  else if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0)
    error = folder + ": expected a folder that this user alone may read and write, for the token of "
                     "the job; or give it in MESHWRIGHT_TOKEN";
  return error.empty() ? folder : "";
}

class MasterPort : public Rendezvous {
public:
  MasterPort(std::string host, int port) : host(std::move(host)), port(port) {}
  ~MasterPort() override {
    if (!written.empty())
      unlink(written.c_str());
  }

  /// Returns null, with an error, if the processes have no token.
  static std::unique_ptr<Rendezvous> find(const std::string &host, int port, std::string &error) {
    auto found = std::make_unique<MasterPort>(host, port);
    const char *given = std::getenv("MESHWRIGHT_TOKEN");
    if (given && *given)
      found->given = std::stoll(hashOf(given, std::strlen(given)).substr(0, 15), nullptr, 16);
    else if (host != "localhost" && host != "::1" && host.rfind("127.", 0) != 0)
      error = found->describe() + ": expected a text that only processes of this job know in "
                                  "MESHWRIGHT_TOKEN, since other machines reach this address";
    return error.empty() ? std::move(found) : nullptr;
  }

  std::unique_ptr<Listener> open(int64_t &token, std::string &error) override {
    std::unique_ptr<Listener> listener = Listener::open(port, host, error);
    if (!listener) {
      error = describe() + ": " + error;
      return nullptr;
    }
    token = given.value_or(makeToken());
    std::string path = given ? "" : getPath(error);
    if (!path.empty() && writeSecret(path, std::to_string(token) + "\n", error))
      written = path;
    if (!error.empty())
      return nullptr;
    return listener;
  }
  std::unique_ptr<Wire> connect(int64_t &token, std::string &error) override {
    if (given) {
      token = *given;
    } else {
      std::string path = getPath(error);
      std::ifstream file(path);
      // A file of an earlier job has another token.
      if (path.empty() || !(file >> token))
        return nullptr;
    }
    return connectTo(host, port);
  }
  std::string describe() const override {
    return "MASTER_ADDR:MASTER_PORT, " + host + ":" + std::to_string(port);
  }

private:
  /// The file of the token on this machine.
  std::string getPath(std::string &error) const {
    std::string folder = openUserFolder(error);
    return folder.empty() ? "" : folder + "/rendezvous-" + std::to_string(port);
  }

  std::optional<int64_t> given;
  std::string written;
  const std::string host;
  const int port;
};

//===----------------------------------------------------------------------===//
// The store of torchrun
//===----------------------------------------------------------------------===//

/// torchrun's agent has a store at the master's port (TORCHELASTIC_USE_AGENT_STORE). A client sends the
/// number of a request and its texts; see c10d's TCPStoreBackend.hpp.
class TorchStore : public Rendezvous {
public:
  TorchStore(std::string host, int port) : host(std::move(host)), port(port) {
    const char *attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
    const char *job = std::getenv("TORCHELASTIC_RUN_ID");
    key = std::string("meshwright/") + (job ? job : "") + "/" + (attempt ? attempt : "0");
  }

  std::unique_ptr<Listener> open(int64_t &token, std::string &error) override {
    Address address;
    std::unique_ptr<Listener> listener = openAnywhere(address, error);
    if (!listener)
      return nullptr;
    token = address.token;
    std::unique_ptr<Wire> store = enter();
    if (store && request(*store, kSet, {key, address.toText()}) && confirm(*store))
      return listener;
    error = describe() + " does not answer";
    return nullptr;
  }
  std::unique_ptr<Wire> connect(int64_t &token, std::string &) override {
    std::unique_ptr<Wire> store = enter();
    std::string text;
    if (!store || !has(*store) || !request(*store, kGet, {key}) || !read(*store, text))
      return nullptr;
    std::optional<Address> address = Address::fromText(text);
    if (!address)
      return nullptr;
    token = address->token;
    return address->connect(attempts++);
  }
  std::string describe() const override {
    return "torchrun's store at " + host + ":" + std::to_string(port);
  }

private:
  static constexpr uint8_t kValidate = 0, kSet = 1, kGet = 3, kCheck = 5;
  static constexpr uint32_t kMagic = 0x3C85F7CE;

  static Clock::time_point soon() { return Clock::now() + std::chrono::seconds(10); }

  std::unique_ptr<Wire> enter() const {
    std::unique_ptr<Wire> store = connectTo(host, port);
    if (store && store->sendBytes(&kValidate, 1) && store->sendBytes(&kMagic, sizeof(kMagic)))
      return store;
    return nullptr;
  }
  static bool request(Wire &store, uint8_t kind, const std::vector<std::string> &texts) {
    std::string bytes(1, char(kind));
    for (const std::string &text : texts) {
      uint64_t size = text.size();
      bytes.append(reinterpret_cast<const char *>(&size), sizeof(size));
      bytes += text;
    }
    return store.sendBytes(bytes.data(), bytes.size());
  }
  static bool read(Wire &store, std::string &text) {
    uint64_t size = 0;
    if (!store.receiveBytes(&size, sizeof(size), soon()) || size > 1 << 20)
      return false;
    text.resize(size);
    return store.receiveBytes(text.data(), size, soon());
  }
  /// Returns true if the store has the key.
  bool has(Wire &store) const {
    std::string bytes(1, char(kCheck));
    for (uint64_t number : {uint64_t(1), uint64_t(key.size())})
      bytes.append(reinterpret_cast<const char *>(&number), sizeof(number));
    bytes += key;
    uint8_t isMissing = 1;
    return store.sendBytes(bytes.data(), bytes.size()) &&
           store.receiveBytes(&isMissing, 1, soon()) && !isMissing;
  }
  /// A store answers no request to set. It has performed it when it answers the next one.
  bool confirm(Wire &store) const { return has(store); }

  const std::string host;
  const int port;
  std::string key;
  size_t attempts = 0;
};

//===----------------------------------------------------------------------===//
// Open MPI
//===----------------------------------------------------------------------===//

/// The functions of Open MPI that broadcast a text. MPI is ended when the process ends, unless another
/// library has begun it.
class OpenMpi : public Rendezvous {
public:
  /// Returns null if the library is not there.
  static std::unique_ptr<Rendezvous> find() {
    for (const char *name : {"libmpi.so.40", "libmpi.so"})
      // Plug-ins of the library look for its symbols in the process.
      if (void *library = dlopen(name, RTLD_NOW | RTLD_GLOBAL))
        if (dlsym(library, "ompi_mpi_comm_world"))
          return std::unique_ptr<Rendezvous>(new OpenMpi(library));
    return nullptr;
  }

  std::unique_ptr<Listener> open(int64_t &token, std::string &error) override {
    Address address;
    std::unique_ptr<Listener> listener = openAnywhere(address, error);
    token = address.token;
    std::string text = listener ? address.toText() : "";
    if (broadcast(text, error))
      return listener;
    return nullptr;
  }
  std::unique_ptr<Wire> connect(int64_t &token, std::string &error) override {
    if (!address) {
      std::string text;
      if (!broadcast(text, error))
        return nullptr;
      address = Address::fromText(text);
      if (!address) {
        error = "rank 0 cannot listen";
        return nullptr;
      }
    }
    token = address->token;
    return address->connect(attempts++);
  }
  std::string describe() const override { return "the address that Open MPI broadcast"; }

private:
  explicit OpenMpi(void *library) : library(library) {}

  template <typename Type> Type *lookUp(const char *name) const {
    return reinterpret_cast<Type *>(dlsym(library, name));
  }

  /// Sends the text of rank 0 to all.
  bool broadcast(std::string &text, std::string &error) {
    constexpr int kThreads = 1; // MPI_THREAD_FUNNELED
    auto *isBegun = lookUp<int(int *)>("MPI_Initialized");
    auto *begin = lookUp<int(int *, char ***, int, int *)>("MPI_Init_thread");
    auto *send = lookUp<int(void *, int, void *, int, void *)>("MPI_Bcast");
    finish = lookUp<int()>("MPI_Finalize");
    isFinished = lookUp<int(int *)>("MPI_Finalized");
    void *world = dlsym(library, "ompi_mpi_comm_world"), *bytes = dlsym(library, "ompi_mpi_char");
    if (!isBegun || !begin || !send || !finish || !isFinished || !bytes) {
      error = "Open MPI lacks a function";
      return false;
    }
    int begun = 0, ended = 0, level = 0;
    isBegun(&begun);
    isFinished(&ended);
    if (ended || (!begun && begin(nullptr, nullptr, kThreads, &level) != 0)) {
      error = ended ? "MPI has ended in this process" : "Open MPI does not start";
      return false;
    }
    if (!begun)
      std::atexit([] {
        int ended = 0;
        // After a failure another process may not come.
        if (isFinished(&ended) == 0 && !ended && !Processes::haveFailed())
          finish();
      });
    std::vector<char> buffer(4096, 0);
    text.copy(buffer.data(), buffer.size() - 1);
    if (send(buffer.data(), int(buffer.size()), bytes, 0, world) != 0) {
      error = "MPI_Bcast failed";
      return false;
    }
    text = buffer.data();
    return true;
  }

  void *library;
  std::optional<Address> address;
  size_t attempts = 0;
  static inline int (*finish)() = nullptr;
  static inline int (*isFinished)(int *) = nullptr;
};

//===----------------------------------------------------------------------===//
// A file
//===----------------------------------------------------------------------===//

class SharedFile : public Rendezvous {
public:
  explicit SharedFile(std::string path) : path(std::move(path)) {}
  ~SharedFile() override {
    if (isMine)
      unlink(path.c_str());
  }

  std::unique_ptr<Listener> open(int64_t &token, std::string &error) override {
    Address address;
    std::unique_ptr<Listener> listener = openAnywhere(address, error);
    if (!listener)
      return nullptr;
    token = address.token;
    if (!writeSecret(path, address.toText() + "\n", error)) {
      error = "MESHWRIGHT_RENDEZVOUS, " + error;
      return nullptr;
    }
    isMine = true;
    return listener;
  }
  std::unique_ptr<Wire> connect(int64_t &token, std::string &) override {
    std::ifstream file(path);
    std::string text;
    // A file of an earlier job names a closed port, or another token.
    if (!std::getline(file, text))
      return nullptr;
    std::optional<Address> address = Address::fromText(text);
    if (!address)
      return nullptr;
    token = address->token;
    return address->connect(attempts++);
  }
  std::string describe() const override { return "MESHWRIGHT_RENDEZVOUS, '" + path + "'"; }

private:
  const std::string path;
  bool isMine = false;
  size_t attempts = 0;
};

} // namespace

//===----------------------------------------------------------------------===//
// Choice
//===----------------------------------------------------------------------===//

std::unique_ptr<Rendezvous> Rendezvous::find(const Launcher &launcher, std::string &error) {
  auto read = [](const char *name) {
    const char *text = std::getenv(name);
    return std::string(text ? text : "");
  };
  std::string host = read("MASTER_ADDR"), port = read("MASTER_PORT");
  if (!host.empty() && !port.empty()) {
    int number = std::atoi(port.c_str());
    if (number < 1 || number > 65535) {
      error = "MASTER_PORT: expected 1 to 65535, got '" + port + "'";
      return nullptr;
    }
    if (read("TORCHELASTIC_USE_AGENT_STORE") == "True")
      return std::make_unique<TorchStore>(host, number);
    return MasterPort::find(host, number, error);
  }
  if (launcher.isOpenMpi)
    if (std::unique_ptr<Rendezvous> found = OpenMpi::find())
      return found;
  if (std::string path = read("MESHWRIGHT_RENDEZVOUS"); !path.empty())
    return std::make_unique<SharedFile>(path);
  error = launcher.sizeName + " is " + std::to_string(launcher.size) +
          ", and nothing says where the processes meet: expected MASTER_ADDR and MASTER_PORT, Open "
          "MPI's mpirun, or a file of all processes in MESHWRIGHT_RENDEZVOUS";
  return nullptr;
}

} // namespace meshwright::rt::gpu
