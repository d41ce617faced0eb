// RUN: not sharding-opt %s --decompose-all-reduce=when=sometimes 2>&1 | FileCheck %s

// CHECK: error: decompose-all-reduce: option 'when' is 'sometimes', expected auto or always
func.func @main() {
  return
}
