//===- Wire.h - messages between processes ----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_BACKENDS_NCCL_WIRE_H
#define MESHWRIGHT_RUNTIME_BACKENDS_NCCL_WIRE_H

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace meshwright::rt::gpu {

using Clock = std::chrono::steady_clock;

/// Kinds of messages. A process talks to the process of rank 0 only.
enum class Message : uint32_t {
  /// Numbers and texts of a process that connects (Processes.cpp).
  Hello,
  /// The texts of all Hellos.
  Welcome,
  /// The part of a process in an exchange, and the parts of all.
  Part,
  Parts,
  /// A sign of life.
  Beat,
  /// The first failure.
  Failed,
  /// The process ends in order.
  Bye
};

/// Writes numbers and texts one after the other.
class Writer {
public:
  Writer &add(int64_t number);
  Writer &add(const std::string &text);
  std::string text;
};

/// Reads them back. `isWhole` becomes false where the text ends too early.
class Reader {
public:
  explicit Reader(const std::string &text) : text(text) {}
  int64_t readNumber();
  std::string readText();
  bool isWhole = true;

private:
  const std::string &text;
  size_t position = 0;
};

/// A connection. Any thread may send; one thread receives.
class Wire {
public:
  explicit Wire(int file);
  ~Wire();
  int getFile() const { return file; }

  /// Returns false if the other end is gone, or takes nothing for `kSendSeconds`.
  bool send(Message kind, const std::string &text);
  /// Takes the bytes that have come. Returns false at the end of the connection.
  bool fill();
  /// Takes the next whole message that has come.
  bool take(Message &kind, std::string &text);
  /// Waits for the next message. Returns false at the end of the connection or at the deadline.
  bool await(Message &kind, std::string &text, Clock::time_point deadline);

  // Bytes of a foreign protocol, before any message.
  bool sendBytes(const void *data, size_t bytes);
  bool receiveBytes(void *data, size_t bytes, Clock::time_point deadline);

private:
  const int file;
  std::mutex sending;
  std::vector<char> received;
};

/// Returns the file of a connection to a host and port, or null.
std::unique_ptr<Wire> connectTo(const std::string &host, int port);

/// A socket to which others connect.
class Listener {
public:
  /// Listens at that port of a host of this machine, or of all its addresses if the host is empty; a
  /// port of 0 stands for any. Returns null, with an error.
  static std::unique_ptr<Listener> open(int port, const std::string &host, std::string &error);
  ~Listener();
  int getPort() const { return port; }
  /// Returns null if no process connects before the deadline.
  std::unique_ptr<Wire> accept(Clock::time_point deadline);

private:
  Listener(int file, int port) : file(file), port(port) {}
  const int file, port;
};

} // namespace meshwright::rt::gpu

#endif // MESHWRIGHT_RUNTIME_BACKENDS_NCCL_WIRE_H
