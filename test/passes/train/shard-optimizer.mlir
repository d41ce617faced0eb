// RUN: sharding-opt %s --bind-state --shard-optimizer="axes=dp,ring mode=on" | FileCheck %s --check-prefixes=CHECK,ON
// RUN: sharding-opt %s --bind-state --shard-optimizer="axes=dp mode=auto" | FileCheck %s --check-prefixes=CHECK,AUTO
// RUN: sharding-opt %s --bind-state --shard-optimizer="axes=dp mode=off" | FileCheck %s --check-prefix=OFF
// RUN: sharding-opt %s --bind-state --shard-optimizer="axes=pp mode=on" | FileCheck %s --check-prefix=OFF
// RUN: sharding-opt %s --bind-state --shard-optimizer="mode=on" | FileCheck %s --check-prefixes=CHECK,ON
// RUN: sharding-opt %s --bind-state --declare-mesh="roles=data=dp" --shard-optimizer="mode=on" | FileCheck %s --check-prefixes=CHECK,ON
// RUN: sharding-opt %s --bind-state --declare-mesh="roles=data=none,ulysses=dp" --shard-optimizer="mode=on" | FileCheck %s --check-prefixes=CHECK,ON
// RUN: sharding-opt %s --bind-state --declare-mesh="roles=data=none" --shard-optimizer="mode=on" | FileCheck %s --check-prefix=OFF
// OFF-NOT: dist.constrain

dist.mesh @mesh = <["dp"=2, "tp"=2], device = "h100">

// States are sharded in addition to the parameter's layout, over a factor that needs no padding. A bias of 3 elements
// is padded, one element stays whole, and `auto` leaves small ones alone.

// CHECK: nn.state @big {
// CHECK-NOT: dp
// ON: nn.state @optimizer.exp_avg.big {dist.sharding = #dist.sharding<@mesh, [{"tp", "dp"}, {}]>
// AUTO: nn.state @optimizer.exp_avg.big {dist.sharding = #dist.sharding<@mesh, [{"tp", "dp"}, {}]>
// ON: nn.state @optimizer.exp_avg.odd {dist.sharding = #dist.sharding<@mesh, [{}, {"dp"}]>
// AUTO: nn.state @optimizer.exp_avg.odd {fill
// CHECK: nn.state @optimizer.exp_avg.one {fill
nn.state @big {role = "parameter"} : tensor<8192x8192xf32>
nn.state @odd {role = "parameter"} : tensor<3x8xf32>
nn.state @one {role = "parameter"} : tensor<f32>
nn.state @optimizer.exp_avg.big {fill = 0.0 : f32, role = "optimizer"} : tensor<8192x8192xf32>
nn.state @optimizer.exp_avg.odd {fill = 0.0 : f32, role = "optimizer"} : tensor<3x8xf32>
nn.state @optimizer.exp_avg.one {fill = 0.0 : f32, role = "optimizer"} : tensor<f32>

// CHECK-LABEL: func.func @step
// CHECK: %[[G:.*]] = nn.gradient %{{.*}} of "big"
// CHECK: dist.constrain %[[G]] <@mesh, [{"tp", "dp"}, {}]>
// CHECK: nn.gradient %{{.*}} of "odd"
// ON: dist.constrain %{{.*}} <@mesh, [{}, {"dp"}]>
// AUTO-NOT: dist.constrain
// CHECK: nn.gradient %{{.*}} of "one"
// CHECK: %[[N:.*]] = nn.add %{{.*}}, %{{.*}} : (tensor<8192x8192xf32>
// CHECK: %[[NEXT:.*]] = dist.constrain %{{.*}} <@mesh, [{"tp", "dp"}, {}]>
// CHECK: return %[[NEXT]]
func.func @step(%big: tensor<8192x8192xf32> {nn.parameter = "big", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                %odd: tensor<3x8xf32> {nn.parameter = "odd"}, %one: tensor<f32> {nn.parameter = "one"}) {
  %0 = nn.reduce sum %big dims [0, 1] : (tensor<8192x8192xf32>) -> tensor<f32>
  %1 = nn.reduce sum %odd dims [0, 1] : (tensor<3x8xf32>) -> tensor<f32>
  %2 = nn.add %0, %1 : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %loss = nn.mul %2, %one : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %gb = nn.gradient %loss of "big" : (tensor<f32>) -> tensor<8192x8192xf32>
  %go = nn.gradient %loss of "odd" : (tensor<f32>) -> tensor<3x8xf32>
  %g1 = nn.gradient %loss of "one" : (tensor<f32>) -> tensor<f32>
  %mb = nn.read @optimizer.exp_avg.big : tensor<8192x8192xf32>
  %mo = nn.read @optimizer.exp_avg.odd : tensor<3x8xf32>
  %m1 = nn.read @optimizer.exp_avg.one : tensor<f32>
  %nb = nn.add %mb, %gb : (tensor<8192x8192xf32>, tensor<8192x8192xf32>) -> tensor<8192x8192xf32>
  %no = nn.add %mo, %go : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  %n1 = nn.add %m1, %g1 : (tensor<f32>, tensor<f32>) -> tensor<f32>
  nn.write @optimizer.exp_avg.big, %nb : tensor<8192x8192xf32>
  nn.write @optimizer.exp_avg.odd, %no : tensor<3x8xf32>
  nn.write @optimizer.exp_avg.one, %n1 : tensor<f32>
  %pb = nn.sub %big, %nb : (tensor<8192x8192xf32>, tensor<8192x8192xf32>) -> tensor<8192x8192xf32>
  %po = nn.sub %odd, %no : (tensor<3x8xf32>, tensor<3x8xf32>) -> tensor<3x8xf32>
  %p1 = nn.sub %one, %n1 : (tensor<f32>, tensor<f32>) -> tensor<f32>
  nn.write @big, %pb : tensor<8192x8192xf32>
  nn.write @odd, %po : tensor<3x8xf32>
  nn.write @one, %p1 : tensor<f32>
  return
}
