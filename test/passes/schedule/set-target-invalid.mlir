// RUN: sharding-opt %s --set-target=target=gpu:sm_12 -verify-diagnostics -o %t
// RUN: not sharding-opt %s --set-target=target=tpu 2>&1 | FileCheck %s --check-prefix=KIND
// RUN: not sharding-opt %s --parallelize="mesh=tp=2 target=gpu:sm_12" 2>&1 | FileCheck %s --check-prefix=OPTION

// KIND: unknown target 'tpu': expected cpu, or cpu: and a processor's name, as in cpu:x86-64-v3, or gpu: and a chip, as in gpu:sm_90a
// OPTION: target 'gpu:sm_12': unknown chip 'sm_12'

// expected-error@+1 {{target 'gpu:sm_12': unknown chip 'sm_12': expected one of sm_80, sm_90, sm_90a, sm_100, sm_120}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
