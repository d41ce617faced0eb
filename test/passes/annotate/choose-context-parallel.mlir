// RUN: sharding-opt %s --split-input-file --choose-context-parallel | FileCheck %s
// RUN: sharding-opt %s --split-input-file --pass-pipeline='builtin.module(choose-context-parallel,report-decisions)' -o /dev/null 2>&1 | FileCheck %s --check-prefix=WHY
// RUN: not sharding-opt %s --split-input-file --choose-context-parallel="ulysses=nobody" 2>&1 | FileCheck %s --check-prefix=AXIS
// RUN: not sharding-opt %s --split-input-file --choose-context-parallel="ulysses=sp tensor=sp" 2>&1 | FileCheck %s --check-prefix=USED

// AXIS: error: 'dist.mesh' op has no axis "nobody" for Ulysses attention
// USED: error: 'dist.mesh' op axis "sp" for Ulysses attention is that of tensor parallelism: expected another

// One host, heads enough: Ulysses.

// CHECK: dist.mesh @mesh = <["sp"=4 {roles = [ulysses]}], device = "h100">
// WHY: remark: [choose-context-parallel] applied: attention takes 'ulysses=sp ring=none order=contiguous'
// WHY-DAG: chosen: ulysses=sp ring=none order=contiguous (seconds = {{.*}}, bytes = {{.*}}, memory_bytes = {{.*}}, largest_over_mean_work = 1)
// WHY-DAG: alternative: ulysses=none ring=sp order=zigzag ({{.*}}, largest_over_mean_work = 1)
// WHY-DAG: alternative: ulysses=none ring=sp order=contiguous ({{.*}}, largest_over_mean_work = 1.75
dist.mesh @mesh = <["sp"=4], device = "h100">
func.func @one_host(%q: tensor<1x32x4096x128xbf16> {nn.input = "q"}) -> (tensor<1x32x4096x128xbf16> {nn.output = "o"}) {
  %0 = nn.add %q, %q : (tensor<1x32x4096x128xbf16>, tensor<1x32x4096x128xbf16>) -> tensor<1x32x4096x128xbf16>
  %k = nn.slice %0 starts [0, 0, 0, 0] limits [1, 8, 4096, 128] strides [1, 1, 1, 1] : (tensor<1x32x4096x128xbf16>) -> tensor<1x8x4096x128xbf16>
  %o = nn.attention %0, %k, %k scale 0.1 {causal} : (tensor<1x32x4096x128xbf16>, tensor<1x8x4096x128xbf16>, tensor<1x8x4096x128xbf16>) -> tensor<1x32x4096x128xbf16>
  return %o : tensor<1x32x4096x128xbf16>
}

// -----

// Across hosts keys move along the ring, with heads enough or not, in any order of the axes.

// CHECK: dist.mesh @mesh = <["sp"=4 {roles = [ulysses]}, "host"=2 {roles = [ring], order = zigzag}], device = "h100">
dist.mesh @mesh = <["sp"=4, "host"=2], device = "h100">
func.func @across_hosts(%q: tensor<1x32x8192x128xbf16> {nn.input = "q"}) -> (tensor<1x32x8192x128xbf16> {nn.output = "o"}) {
  %0 = nn.add %q, %q : (tensor<1x32x8192x128xbf16>, tensor<1x32x8192x128xbf16>) -> tensor<1x32x8192x128xbf16>
  %k = nn.slice %0 starts [0, 0, 0, 0] limits [1, 8, 8192, 128] strides [1, 1, 1, 1] : (tensor<1x32x8192x128xbf16>) -> tensor<1x8x8192x128xbf16>
  %o = nn.attention %0, %k, %k scale 0.1 {causal} : (tensor<1x32x8192x128xbf16>, tensor<1x8x8192x128xbf16>, tensor<1x8x8192x128xbf16>) -> tensor<1x32x8192x128xbf16>
  return %o : tensor<1x32x8192x128xbf16>
}

// -----

// Short sequences too.

// CHECK: dist.mesh @mesh = <["host"=2 {roles = [ring], order = zigzag}, "sp"=4 {roles = [ulysses]}], device = "h100">
dist.mesh @mesh = <["host"=2, "sp"=4], device = "h100">
func.func @short_sequence(%q: tensor<1x8x64x128xf32> {nn.input = "q"}) -> (tensor<1x8x64x128xf32> {nn.output = "o"}) {
  %0 = nn.add %q, %q : (tensor<1x8x64x128xf32>, tensor<1x8x64x128xf32>) -> tensor<1x8x64x128xf32>
  %o = nn.attention %0, %0, %0 scale 0.1 {causal} : (tensor<1x8x64x128xf32>, tensor<1x8x64x128xf32>, tensor<1x8x64x128xf32>) -> tensor<1x8x64x128xf32>
  return %o : tensor<1x8x64x128xf32>
}

// -----

// Only hosts: the ring. Without a causal mask its order is contiguous.

// CHECK: dist.mesh @mesh = <["host"=2 {roles = [ring], order = contiguous}], device = "h100">
// WHY: attention takes 'ulysses=none ring=host order=contiguous'
dist.mesh @mesh = <["host"=2], device = "h100">
func.func @only_hosts(%q: tensor<1x32x8192x128xbf16> {nn.input = "q"}) -> (tensor<1x32x8192x128xbf16> {nn.output = "o"}) {
  %0 = nn.add %q, %q : (tensor<1x32x8192x128xbf16>, tensor<1x32x8192x128xbf16>) -> tensor<1x32x8192x128xbf16>
  %o = nn.attention %0, %0, %0 scale 0.1 : (tensor<1x32x8192x128xbf16>, tensor<1x32x8192x128xbf16>, tensor<1x32x8192x128xbf16>) -> tensor<1x32x8192x128xbf16>
  return %o : tensor<1x32x8192x128xbf16>
}

// -----

// Two heads for eight ranks would be padded to eight.

// CHECK: dist.mesh @mesh = <["sp"=8 {roles = [ring], order = contiguous}], device = "h100">
dist.mesh @mesh = <["sp"=8], device = "h100">
func.func @two_heads_for_eight_ranks(%q: tensor<1x2x16384x128xbf16> {nn.input = "q"}) -> (tensor<1x2x16384x128xbf16> {nn.output = "o"}) {
  %0 = nn.add %q, %q : (tensor<1x2x16384x128xbf16>, tensor<1x2x16384x128xbf16>) -> tensor<1x2x16384x128xbf16>
  %o = nn.attention %0, %0, %0 scale 0.1 : (tensor<1x2x16384x128xbf16>, tensor<1x2x16384x128xbf16>, tensor<1x2x16384x128xbf16>) -> tensor<1x2x16384x128xbf16>
  return %o : tensor<1x2x16384x128xbf16>
}

// -----

// Tensor parallelism leaves four heads a rank.

// CHECK: dist.mesh @mesh = <["tp"=2 {roles = [tensor]}, "a"=2 {roles = [ring], order = zigzag}, "b"=4 {roles = [ulysses]}], device = "h100">
dist.mesh @mesh = <["tp"=2, "a"=2, "b"=4], device = "h100">
func.func @beside_tensor_parallel(%q: tensor<1x8x8192x128xbf16> {nn.input = "q"}) -> (tensor<1x8x8192x128xbf16> {nn.output = "o"}) {
  %0 = nn.add %q, %q : (tensor<1x8x8192x128xbf16>, tensor<1x8x8192x128xbf16>) -> tensor<1x8x8192x128xbf16>
  %o = nn.attention %0, %0, %0 scale 0.1 {causal} : (tensor<1x8x8192x128xbf16>, tensor<1x8x8192x128xbf16>, tensor<1x8x8192x128xbf16>) -> tensor<1x8x8192x128xbf16>
  return %o : tensor<1x8x8192x128xbf16>
}

// -----

// A window that leaves most steps empty.

// CHECK: dist.mesh @mesh = <["host"=8 {roles = [ring], order = contiguous}], device = "h100">
// WHY: attention takes 'ulysses=none ring=host order=contiguous'
dist.mesh @mesh = <["host"=8], device = "h100">
func.func @window(%q: tensor<1x8x16384x128xbf16> {nn.input = "q"}) -> (tensor<1x8x16384x128xbf16> {nn.output = "o"}) {
  %0 = nn.add %q, %q : (tensor<1x8x16384x128xbf16>, tensor<1x8x16384x128xbf16>) -> tensor<1x8x16384x128xbf16>
  %o = nn.attention %0, %0, %0 scale 0.1 {causal, window_left = 127 : i64} : (tensor<1x8x16384x128xbf16>, tensor<1x8x16384x128xbf16>, tensor<1x8x16384x128xbf16>) -> tensor<1x8x16384x128xbf16>
  return %o : tensor<1x8x16384x128xbf16>
}

// -----

// No axis is left.

// CHECK: dist.mesh @mesh = <["dp"=2 {roles = [data]}, "tp"=2 {roles = [tensor]}], device = "h100">
// WHY: declined: context-parallel=auto: the mesh has no axis of more than one rank that data or tensor parallelism leaves
dist.mesh @mesh = <["dp"=2, "tp"=2], device = "h100">
func.func @no_axis_left(%q: tensor<1x8x128x128xf32> {nn.input = "q"}) -> (tensor<1x8x128x128xf32> {nn.output = "o"}) {
  %0 = nn.add %q, %q : (tensor<1x8x128x128xf32>, tensor<1x8x128x128xf32>) -> tensor<1x8x128x128xf32>
  %o = nn.attention %0, %0, %0 scale 0.1 {causal} : (tensor<1x8x128x128xf32>, tensor<1x8x128x128xf32>, tensor<1x8x128x128xf32>) -> tensor<1x8x128x128xf32>
  return %o : tensor<1x8x128x128xf32>
}

// -----

// An axis that has a role keeps it: of the others, only "b" is free.

// CHECK: dist.mesh @mesh = <["a"=2 {roles = [data]}, "b"=2 {roles = [ulysses]}, "c"=2 {roles = [ring], order = zigzag}], device = "h100">
dist.mesh @mesh = <["a"=2 {roles = [data]}, "b"=2 {roles = []}, "c"=2 {roles = [ring]}], device = "h100">
func.func @a_ring_before(%q: tensor<1x8x8192x128xbf16> {nn.input = "q"}) -> (tensor<1x8x8192x128xbf16> {nn.output = "o"}) {
  %0 = nn.add %q, %q : (tensor<1x8x8192x128xbf16>, tensor<1x8x8192x128xbf16>) -> tensor<1x8x8192x128xbf16>
  %o = nn.attention %0, %0, %0 scale 0.1 {causal} : (tensor<1x8x8192x128xbf16>, tensor<1x8x8192x128xbf16>, tensor<1x8x8192x128xbf16>) -> tensor<1x8x8192x128xbf16>
  return %o : tensor<1x8x8192x128xbf16>
}
