// RUN: sharding-opt %s --combine-collectives --split-input-file | FileCheck %s
// RUN: sharding-opt %s --combine-collectives --report-decisions --split-input-file 2>&1 -o /dev/null | FileCheck %s --check-prefix=LOG

// CHECK-LABEL: func.func @join
// CHECK: %[[BOTH:.*]]:2 = dist.all_gather %arg0, %{{.*}} axes ["tp"] dims [0, 0] : (tensor<4x8xf32>, tensor<4x8xf32>) -> (tensor<16x8xf32>, tensor<16x8xf32>)
// CHECK-NEXT: %[[VIEW:.*]] = nn.reshape %[[BOTH]]#0
// CHECK-NOT: dist.all_gather
// LOG: applied: dist.all_gather joins the launch of another one
dist.mesh @mesh = <["tp"=4]>
func.func @join(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %v = nn.reshape %0 : (tensor<16x8xf32>) -> tensor<1x16x8xf32>
  %1 = nn.relu %x : tensor<4x8xf32>
  %2 = dist.all_gather %1 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %w = nn.reshape %v : (tensor<1x16x8xf32>) -> tensor<16x8xf32>
  %3 = nn.add %w, %2 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  return %3 : tensor<16x8xf32>
}

// -----

// The second depends on the first.
// CHECK-LABEL: func.func @dependent
// CHECK-COUNT-2: dist.all_gather {{.*}} -> tensor<16x8xf32>
dist.mesh @mesh = <["tp"=4]>
func.func @dependent(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %1 = dist.slice %0 axes ["tp"] dims [0] : (tensor<16x8xf32>) -> tensor<4x8xf32>
  %s = nn.reduce sum %0 dims [0] : (tensor<16x8xf32>) -> tensor<8xf32>
  %2 = nn.add %1, %s : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %3 = dist.all_gather %2 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %4 = nn.add %0, %3 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  return %4 : tensor<16x8xf32>
}

// -----

// The first can run beside a product that takes longer than a launch.
// CHECK-LABEL: func.func @overlap
// CHECK-COUNT-2: dist.all_gather {{.*}} -> tensor<65536x1024xf32>
// LOG: declined: dist.all_gather keeps its own launch
dist.mesh @mesh = <["tp"=4], device = "h100">
func.func @overlap(
    %x: tensor<16384x1024xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<65536x1024xf32>},
    %w: tensor<1024x1024xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1024x1024xf32>})
    -> (tensor<65536x1024xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<65536x1024xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<16384x1024xf32>) -> tensor<65536x1024xf32>
  %1 = nn.linear %x, %w : (tensor<16384x1024xf32>, tensor<1024x1024xf32>) -> tensor<16384x1024xf32>
  %2 = dist.all_gather %1 axes ["tp"] dims [0] : (tensor<16384x1024xf32>) -> tensor<65536x1024xf32>
  %3 = nn.add %0, %2 : (tensor<65536x1024xf32>, tensor<65536x1024xf32>) -> tensor<65536x1024xf32>
  return %3 : tensor<65536x1024xf32>
}

// -----

// Equal ones become one; what a move undoes goes.
// CHECK-LABEL: func.func @redundant
// CHECK-NEXT: %[[WHOLE:.*]] = dist.all_gather %arg0
// CHECK-NEXT: %[[SUM:.*]] = nn.add %[[WHOLE]], %[[WHOLE]]
// CHECK-NEXT: %[[SHARD:.*]] = nn.relu %arg0
// CHECK-NEXT: return %[[SUM]], %[[SHARD]]
// LOG: applied: dist.all_gather of the same value is done once
// LOG: applied: dist.slice undoes the dist.all_gather before it
dist.mesh @mesh = <["tp"=4]>
func.func @redundant(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
        tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %1 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %2 = nn.add %0, %1 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  %3 = dist.slice %0 axes ["tp"] dims [0] : (tensor<16x8xf32>) -> tensor<4x8xf32>
  %4 = nn.relu %3 : tensor<4x8xf32>
  return %2, %4 : tensor<16x8xf32>, tensor<4x8xf32>
}

// -----

// A slice with a shift keeps another rank's chunk, which the gather does not give back.
// CHECK-LABEL: func.func @shifted_slice
// CHECK: dist.all_gather
// CHECK: dist.slice
// CHECK: dist.permute
dist.mesh @mesh = <["tp"=4]>
func.func @shifted_slice(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %1 = dist.slice %0 axes ["tp"] dims [0] shift 1 : (tensor<16x8xf32>) -> tensor<4x8xf32>
  %2 = dist.permute %1 axes ["tp"] shift 3 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}

// -----

// An all-to-all and its inverse both go.
// CHECK-LABEL: func.func @there_and_back
// CHECK-SAME: %[[X:[^ ]*]]: tensor<4x8xf32>
// CHECK-NEXT: %[[Y:.*]] = nn.relu %[[X]]
// CHECK-NEXT: return %[[Y]]
// LOG: applied: dist.all_to_all undoes the dist.all_to_all before it
dist.mesh @mesh = <["tp"=4]>
func.func @there_and_back(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_to_all %x axes ["tp"] from [0] to [1] : (tensor<4x8xf32>) -> tensor<16x2xf32>
  %1 = dist.all_to_all %0 axes ["tp"] from [1] to [0] : (tensor<16x2xf32>) -> tensor<4x8xf32>
  %2 = nn.relu %1 : tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}

// -----

// The joint op states the layouts that its parts state.
// CHECK-LABEL: func.func @statements
// CHECK: dist.all_gather %{{.*}}, %{{.*}} axes ["tp"] dims [0, 0] {dist.operands = [unit, #dist.sharding<@mesh, [(8{"tp"}), {?}]>]}
// CHECK-NOT: dist.all_gather
dist.mesh @mesh = <["tp"=4]>
func.func @statements(
    %x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<8x8xf32>})
    -> (tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x8xf32>},
        tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %ones = nn.constant dense<1.0> : tensor<2x8xf32>
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<2x8xf32>) -> tensor<8x8xf32>
  %1 = dist.all_gather %ones axes ["tp"] dims [0] {dist.operands = [#dist.sharding<@mesh, [(8{"tp"}), {?}]>]} : (tensor<2x8xf32>) -> tensor<8x8xf32>
  return %0, %1 : tensor<8x8xf32>, tensor<8x8xf32>
}

// -----

// Weights travel just before they are used, and their gradients when they are there: each has a launch, on streams of its own.
// CHECK-LABEL: func.func @roles
// CHECK: dist.all_gather %arg0 axes ["tp"] dims [0] : (tensor<4x8xf32>)
// CHECK: dist.all_gather %arg0 axes ["tp"] dims [0] role weights : (tensor<4x8xf32>)
// CHECK: dist.all_gather %arg1 axes ["tp"] dims [0] role weights : (tensor<4x8xf32>)
// CHECK-NOT: dist.all_gather
dist.mesh @mesh = <["tp"=4]>
func.func @roles(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>},
    %w: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %1 = dist.all_gather %x axes ["tp"] dims [0] role weights : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %2 = dist.all_gather %w axes ["tp"] dims [0] role weights : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %3 = nn.add %0, %1 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  %4 = nn.add %3, %2 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  return %4 : tensor<16x8xf32>
}
