// Processes calibrate together, and the first writes the file.
// REQUIRES: mpi, slow
// UNSUPPORTED: sanitizer
// RUN: rm -f %t.json
// RUN: meshwright-mpirun -np 2 sharding-run --calibrate=%t.json --backend=mpi 2>&1 | FileCheck %s --check-prefix=SAID
// RUN: FileCheck %s < %t.json
// RUN: sharding-opt %s --declare-mesh="mesh=tp=2 device=%t.json" -o /dev/null

// SAID-COUNT-1: note: calibration written to
// SAID-NOT: note:
// CHECK: "backend": "mpi"
// CHECK: "ranks": 2
// CHECK: "all_reduce": [
func.func @main(%x: tensor<4xf32> {nn.input = "x"}) -> (tensor<4xf32> {nn.output = "y"}) {
  return %x : tensor<4xf32>
}
