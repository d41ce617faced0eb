// RUN: sharding-opt %s --set-target=target=cpu:x86-64-v4 --request-schedule=overlap=off | FileCheck %s --check-prefix=OFF
// RUN: sharding-opt %s --set-target=target=cpu:x86-64-v4 --request-schedule=memory-ceiling=8192 | FileCheck %s --check-prefix=ENOUGH
// RUN: sharding-opt %s --set-target=target=cpu:x86-64-v4 --request-schedule=memory-ceiling=8191 --report-decisions 2>%t.log | FileCheck %s --check-prefix=LITTLE
// RUN: FileCheck %s --check-prefix=LOG --input-file=%t.log
// RUN: sharding-opt %s --set-target=target=cpu:x86-64-v4 --request-schedule=memory-ceiling=6656 --schedule | FileCheck %s --check-prefix=PLAN
// RUN: not sharding-opt %s --set-target=target=cpu:x86-64-v4 --request-schedule=memory-ceiling=6655 --schedule 2>&1 | FileCheck %s --check-prefix=LEAST
// RUN: sed 's/dist.spmd = @mesh}/dist.spmd = @mesh, rt.chunks = "none"}/' %s | sharding-opt --set-target=target=cpu:x86-64-v4 --request-schedule=memory-ceiling=8191 | FileCheck %s --check-prefix=KEPT
// RUN: sed 's/dist.spmd = @mesh}/dist.spmd = @mesh, rt.chunks = "some"}/' %s | not sharding-opt 2>&1 | FileCheck %s --check-prefix=CHUNKS

// The memory of packed weights depends on the processor, so the tests state one.
// Chunks do not pay where nothing runs beside anything. But less is in memory at once:
// under a ceiling that is too low without them there are some.

// OFF: rt.overlap = "off"
// ENOUGH-NOT: rt.chunks
// ENOUGH: rt.memory_ceiling = 8192
// LITTLE: rt.chunks = "all"
// LITTLE-SAME: rt.memory_ceiling = 8191
// LOG: collectives run in chunks wherever they can: so the program needs less memory, of which the ceiling leaves too little otherwise
// PLAN: rt.arena = 2560
// LEAST: error: 'main' needs 6656 bytes on a rank
// KEPT: rt.chunks = "none"
// CHUNKS: error: 'func.func' op 'rt.chunks': expected "all" or "none" on a function, got "some"
dist.mesh @mesh = <["tp"=4]>
func.func @main(
    %x: tensor<32x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<32x32xf32>},
    %w: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<16x32xf32>, nn.parameter = "w"},
    %v: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>, nn.parameter = "v"})
    -> (tensor<32x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<32x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %w : (tensor<32x8xf32>, tensor<16x8xf32>) -> tensor<32x16xf32>
  %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<32x16xf32>) -> tensor<32x16xf32>
  %2 = nn.relu %1 : tensor<32x16xf32>
  %3 = nn.linear %2, %v : (tensor<32x16xf32>, tensor<8x16xf32>) -> tensor<32x8xf32>
  return %3 : tensor<32x8xf32>
}
