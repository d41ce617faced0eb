// RUN: not sharding-opt %s --split-collectives=when=often 2>&1 | FileCheck %s --check-prefix=WHEN
// RUN: not sharding-opt %s --split-collectives=chunks=1 2>&1 | FileCheck %s --check-prefix=CHUNKS

// WHEN: for the --when option: expected on, off or auto, got 'often'
// CHUNKS: for the --chunks option: expected 0 (as many as pay) or at least 2, got '1'
func.func @main() {
  return
}
