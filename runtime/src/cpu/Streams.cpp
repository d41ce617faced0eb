//===- Streams.cpp - communication streams of a rank ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Streams.h"

#include "Workers.h"
#include "meshwright/runtime/src/ranks/Context.h"

namespace meshwright::rt {

void Streams::stop() {
  for (auto &[index, stream] : streams) {
    {
      std::lock_guard<std::mutex> lock(stream->mutex);
      stream->stopping = true;
    }
    stream->added.raise();
    stream->thread.join();
  }
  streams.clear();
}

Streams::Stream &Streams::getStream(int64_t index) {
  auto found = streams.find(index);
  if (found != streams.end())
    return *found->second;
  auto stream = std::make_unique<Stream>();
  stream->index = index;
  stream->thread = std::thread([this, stream = stream.get()] {
    nameThread("mw " + std::to_string(context.rank) + " stream " + std::to_string(stream->index));
    wakePromptly();
    work(*stream);
  });
  return *streams.emplace(index, std::move(stream)).first->second;
}

void Streams::performFirst(Stream &stream, std::unique_lock<std::mutex> &lock) {
  Ticket &ticket = *stream.queue.front();
  stream.queue.pop_front();
  stream.current = &ticket;
  ticket.status = Ticket::Running;
  lock.unlock();
  Caller caller{context.rank, stream.index, ticket.op};
  const Ticket::Work &work = ticket.work;
  int32_t status = work.call ? performExchange(context, caller, *work.call, work.outputs.data())
                             : performCollective(context, caller, *work.collective, work.inputs.data(),
                                                 work.outputs.data());
  lock.lock();
  ticket.succeeded = status == 0;
  ticket.status = Ticket::Done;
  stream.current = nullptr;
  stream.done.raise();
}

bool Streams::advance(Stream &stream, std::unique_lock<std::mutex> &lock, Time deadline) {
  const Ticket &next = stream.current ? *stream.current : *stream.queue.front();
  context.goTo(next.op);
  if (!stream.current) {
    performFirst(stream, lock);
    return true;
  }
  uint32_t done = stream.done.get();
  lock.unlock();
  bool inTime = stream.done.wait(done, spin.load(std::memory_order_relaxed), deadline);
  lock.lock();
  return inTime;
}

void Streams::work(Stream &stream) {
  std::unique_lock<std::mutex> lock(stream.mutex);
  while (!stream.stopping) {
    if (!stream.queue.empty() && !stream.current) {
      performFirst(stream, lock);
      continue;
    }
    // The thread that performs a collective of this stream performs the next one, too, or raises
    // `added` for this thread to do it.
    uint32_t added = stream.added.get();
    lock.unlock();
    stream.added.wait(added, spin.load(std::memory_order_relaxed));
    lock.lock();
  }
}

bool Streams::start(const Caller &caller, Ticket::Work work, int64_t number, std::string &error) {
  if (caller.stream < 1) {
    error = "expected to be started on stream 1 or above, got " + std::to_string(caller.stream);
    return false;
  }
  Ticket &ticket = tickets[number];
  if (ticket.stream != 0) {
    error = "ticket " + std::to_string(number) + " is started again before its wait";
    return false;
  }
  Stream &stream = getStream(caller.stream);
  ticket.op = caller.op;
  ticket.stream = caller.stream;
  ticket.work = std::move(work);
  {
    std::lock_guard<std::mutex> lock(stream.mutex);
    ticket.status = Ticket::Queued;
    stream.queue.push_back(&ticket);
  }
  stream.added.raise();
  return true;
}

bool Streams::wait(int64_t number, std::string &error) {
  auto found = tickets.find(number);
  if (found == tickets.end() || found->second.stream == 0) {
    error = "waits for ticket " + std::to_string(number) + ", which was not started";
    return false;
  }
  Ticket &ticket = found->second;
  Stream &stream = *streams.find(ticket.stream)->second;
  std::unique_lock<std::mutex> lock(stream.mutex);
  while (ticket.status != Ticket::Done)
    advance(stream, lock);
  // The stream's thread performs the rest of the queue.
  bool more = !stream.queue.empty() && !stream.current;
  lock.unlock();
  if (more)
    stream.added.raise();
  bool succeeded = ticket.succeeded;
  ticket.stream = 0;
  return succeeded;
}

bool Streams::drain(Time deadline) {
  for (auto &[index, stream] : streams) {
    std::unique_lock<std::mutex> lock(stream->mutex);
    while (stream->current || !stream->queue.empty())
      if (!advance(*stream, lock, deadline))
        return false;
  }
  tickets.clear();
  return true;
}

} // namespace meshwright::rt
