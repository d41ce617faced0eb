//===- Rendezvous.h - how processes find each other -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_BACKENDS_NCCL_RENDEZVOUS_H
#define MESHWRIGHT_RUNTIME_BACKENDS_NCCL_RENDEZVOUS_H

#include "Wire.h"

#include "meshwright/runtime/include/Environment.h"

namespace meshwright::rt::gpu {

/// How the processes of a launcher find the process of rank 0, by the first of these that there is:
/// - MASTER_ADDR and MASTER_PORT: rank 0 listens there, and nowhere else. Where torchrun's store has
///   that port, the store tells the address.
/// - Open MPI, if mpirun started the processes, which broadcasts the address.
/// - the file that MESHWRIGHT_RENDEZVOUS names, into which rank 0 writes the address.
///
/// Rank 0 turns away a process that does not know the token of the job (docs/trust.md). It is random,
/// and goes to the others with the address. MASTER_ADDR has no place for it: there it is
/// MESHWRIGHT_TOKEN or, on one machine, in a file of the user.
class Rendezvous {
public:
  virtual ~Rendezvous() = default;

  /// Returns null, with an error, if there is none.
  static std::unique_ptr<Rendezvous> find(const Launcher &launcher, std::string &error);

  /// Called by rank 0: listens, and tells the others where. `token` is a secret of this job.
  /// Returns null, with an error.
  virtual std::unique_ptr<Listener> open(int64_t &token, std::string &error) = 0;
  /// Called by the others until the connection is accepted: returns a new connection to rank 0, or
  /// null where it does not listen yet. Sets `error` if it is of no use to wait.
  virtual std::unique_ptr<Wire> connect(int64_t &token, std::string &error) = 0;
  /// For errors: "MASTER_ADDR:MASTER_PORT, 127.0.0.1:29500".
  virtual std::string describe() const = 0;
};

} // namespace meshwright::rt::gpu

#endif // MESHWRIGHT_RUNTIME_BACKENDS_NCCL_RENDEZVOUS_H
