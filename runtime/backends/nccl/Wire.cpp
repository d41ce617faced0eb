//===- Wire.cpp - messages between processes ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Wire.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace meshwright::rt::gpu {

/// How long a process may take nothing from a full connection.
static constexpr int kSendSeconds = 60;
static constexpr uint32_t kMagic = 0x4d574e31;
static constexpr uint64_t kLongestMessage = uint64_t(1) << 40;

namespace {

struct Header {
  uint32_t magic = kMagic, kind = 0;
  uint64_t bytes = 0;
};

} // namespace

//===----------------------------------------------------------------------===//
// Texts
//===----------------------------------------------------------------------===//

Writer &Writer::add(int64_t number) {
  text.append(reinterpret_cast<const char *>(&number), sizeof(number));
  return *this;
}

Writer &Writer::add(const std::string &part) {
  add(int64_t(part.size()));
  text += part;
  return *this;
}

int64_t Reader::readNumber() {
  int64_t number = 0;
  if (text.size() - position < sizeof(number)) {
    isWhole = false;
    return 0;
  }
  std::memcpy(&number, text.data() + position, sizeof(number));
  position += sizeof(number);
  return number;
}

std::string Reader::readText() {
  int64_t size = readNumber();
  if (size < 0 || uint64_t(size) > text.size() - position) {
    isWhole = false;
    return "";
  }
  position += size;
  return text.substr(position - size, size);
}

//===----------------------------------------------------------------------===//
// Connections
//===----------------------------------------------------------------------===//

static int millisecondsUntil(Clock::time_point deadline) {
  auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return int(std::clamp<int64_t>(left, 0, 1000));
}

/// Waits until the file is ready. Returns false at the deadline.
static bool awaitFile(int file, short events, Clock::time_point deadline) {
  while (true) {
    pollfd ready = {file, events, 0};
    if (poll(&ready, 1, millisecondsUntil(deadline)) > 0)
      return true;
    if (Clock::now() >= deadline)
      return false;
  }
}

Wire::Wire(int file) : file(file) {
  int on = 1;
  setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  timeval limit = {kSendSeconds, 0};
  setsockopt(file, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

Wire::~Wire() { close(file); }

bool Wire::sendBytes(const void *data, size_t bytes) {
  auto *from = static_cast<const char *>(data);
  while (bytes > 0) {
    ssize_t sent = ::send(file, from, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR)
      continue;
    if (sent <= 0)
      return false;
    from += sent;
    bytes -= sent;
  }
  return true;
}

bool Wire::receiveBytes(void *data, size_t bytes, Clock::time_point deadline) {
  auto *to = static_cast<char *>(data);
  while (bytes > 0) {
    if (!awaitFile(file, POLLIN, deadline))
      return false;
    ssize_t got = recv(file, to, bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
      continue;
    if (got <= 0)
      return false;
    to += got;
    bytes -= got;
  }
  return true;
}

bool Wire::send(Message kind, const std::string &text) {
  std::lock_guard<std::mutex> lock(sending);
  Header header;
  header.kind = uint32_t(kind);
  header.bytes = text.size();
  return sendBytes(&header, sizeof(header)) && sendBytes(text.data(), text.size());
}

bool Wire::fill() {
  char part[1 << 16];
  while (true) {
    ssize_t got = recv(file, part, sizeof(part), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return errno == EAGAIN || errno == EWOULDBLOCK;
    if (got == 0)
      return false;
    received.insert(received.end(), part, part + got);
  }
}

bool Wire::take(Message &kind, std::string &text) {
  Header header;
  if (received.size() < sizeof(header))
    return false;
  std::memcpy(&header, received.data(), sizeof(header));
  if (header.magic != kMagic || header.bytes > kLongestMessage ||
      received.size() - sizeof(header) < header.bytes)
    return false;
  kind = Message(header.kind);
  text.assign(received.data() + sizeof(header), header.bytes);
  received.erase(received.begin(), received.begin() + sizeof(header) + header.bytes);
  return true;
}

bool Wire::await(Message &kind, std::string &text, Clock::time_point deadline) {
  bool isOpen = true;
  while (!take(kind, text)) {
    if (!isOpen || !awaitFile(file, POLLIN, deadline))
      return false;
    isOpen = fill();
  }
  return true;
}

//===----------------------------------------------------------------------===//
// Beginnings
//===----------------------------------------------------------------------===//

std::unique_ptr<Wire> connectTo(const std::string &host, int port) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0)
    return nullptr;
  std::unique_ptr<Wire> wire;
  for (addrinfo *at = found; at && !wire; at = at->ai_next) {
    int file = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (file < 0)
      continue;
    // A host that does not answer must not hold the others up.
    fcntl(file, F_SETFL, O_NONBLOCK);
    int status = connect(file, at->ai_addr, at->ai_addrlen);
    if (status != 0 && errno == EINPROGRESS &&
        awaitFile(file, POLLOUT, Clock::now() + std::chrono::seconds(3))) {
      socklen_t size = sizeof(status);
      getsockopt(file, SOL_SOCKET, SO_ERROR, &status, &size);
    }
    fcntl(file, F_SETFL, 0);
    if (status == 0)
      wire = std::make_unique<Wire>(file);
    else
      close(file);
  }
  freeaddrinfo(found);
  return wire;
}

/// Returns a socket that listens at an address, or -1. Sets `port` to its port.
static int listenAt(const sockaddr *address, socklen_t size, int &port) {
  int file = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (file < 0)
    return -1;
  int on = 1, off = 0;
  setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address->sa_family == AF_INET6)
    setsockopt(file, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  sockaddr_storage own = {};
  socklen_t ownSize = sizeof(own);
  if (bind(file, address, size) == 0 && listen(file, SOMAXCONN) == 0 &&
      getsockname(file, reinterpret_cast<sockaddr *>(&own), &ownSize) == 0) {
    // The port is at the same place in both kinds of addresses.
    port = ntohs(reinterpret_cast<sockaddr_in *>(&own)->sin_port);
    return file;
  }
  int reason = errno;
  close(file);
  errno = reason;
  return -1;
}

std::unique_ptr<Listener> Listener::open(int port, const std::string &host, std::string &error) {
  // Without a host IPv6 comes first, which takes connections of both kinds. A machine may be without
  // it.
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = host.empty() ? AI_PASSIVE : 0;
  std::string place = (host.empty() ? "" : host + ", ") + "port " + std::to_string(port);
  if (int problem = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(),
                                &hints, &found)) {
    error = "cannot listen at " + place + ": " + gai_strerror(problem);
    return nullptr;
  }
  int file = -1, reason = EADDRNOTAVAIL;
  for (int family : {AF_INET6, AF_INET})
    for (addrinfo *at = found; at && file < 0 && reason != EADDRINUSE; at = at->ai_next) {
      if (at->ai_family != family)
        continue;
      file = listenAt(at->ai_addr, at->ai_addrlen, port);
      reason = file < 0 ? errno : reason;
    }
  freeaddrinfo(found);
  if (file >= 0)
    return std::unique_ptr<Listener>(new Listener(file, port));
  error = "cannot listen at " + place + ": " + std::strerror(reason);
  return nullptr;
}

Listener::~Listener() { close(file); }

std::unique_ptr<Wire> Listener::accept(Clock::time_point deadline) {
  if (!awaitFile(file, POLLIN, deadline))
    return nullptr;
  int accepted = accept4(file, nullptr, nullptr, SOCK_CLOEXEC);
  return accepted < 0 ? nullptr : std::make_unique<Wire>(accepted);
}

} // namespace meshwright::rt::gpu
