// RUN: sharding-opt %s --check-mesh-axes --verify-diagnostics --report-file=%t.txt -o /dev/null
// RUN: FileCheck %s --check-prefix=REPORT --input-file=%t.txt

// An axis is used by a sharding or a collective, as a whole or in part. An axis of
// one rank has nothing to shard.

// REPORT: {{^}}warnings
// REPORT-NEXT: mesh axis "pp" of size 2 shards nothing: all ranks along it do the same work; policies look for "dp", "tp", "gtp", "ep" and the axes that data-parallel, tensor-parallel, gtp, expert-parallel and context-parallel name
// REPORT-NEXT: at {{.*}}check-mesh-axes.mlir:12

// expected-warning @below {{mesh axis "pp" of size 2 shards nothing: all ranks along it do the same work; policies look for "dp", "tp", "gtp"}}
dist.mesh @mesh = <["dp"=2, "pp"=2, "tp"=4, "sp"=4, "one"=1]>
func.func @main(%x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x8xf32>, nn.input = "x"})
    -> (tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x8xf32>, nn.output = "y"})
    attributes {dist.spmd = @mesh} {
  %0 = dist.slice %x axes ["tp", "sp":(1)2] dims [1] : (tensor<2x8xf32>) -> tensor<2x1xf32>
  %1 = dist.all_gather %0 axes ["tp", "sp":(1)2] dims [1] : (tensor<2x1xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}
