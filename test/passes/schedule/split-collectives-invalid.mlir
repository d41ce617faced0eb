// RUN: not sharding-opt %s --split-collectives=when=often 2>&1 | FileCheck %s --check-prefix=WHEN
// RUN: not sharding-opt %s --split-collectives=chunks=1 2>&1 | FileCheck %s --check-prefix=CHUNKS

// WHEN: for the --when option: 'often': expected on, off or auto
// CHUNKS: for the --chunks option: '1': expected 0 (as many as pay) or at least 2
func.func @main() {
  return
}
