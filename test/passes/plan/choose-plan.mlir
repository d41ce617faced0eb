// RUN: sharding-opt %s --choose-plan="request='ranks=4 tensor-parallel=model'" --report-decisions 2>&1 | FileCheck %s
// RUN: sharding-opt %s --parallelize="mesh=auto ranks=4 tensor-parallel=model" | FileCheck %s --check-prefix=MESH
// RUN: sharding-opt %s --parallelize="mesh=data=2,model=2 data-parallel=data tensor-parallel=model objective=memory" | FileCheck %s --check-prefix=GIVEN

// The product has many rows and few features, so splitting the batch takes least time.

// CHECK: remark: [choose-plan] applied: mesh=dp=4 tensor-parallel=none has the best time of {{[0-9]+}} plans
// CHECK: note: chosen: mesh=dp=4
// CHECK: note: alternative: mesh={{.*}}, takes {{.*}} longer
// CHECK: dist.mesh @mesh = <["dp"=4]
// MESH: dist.mesh @mesh = <["dp"=4]
// GIVEN: dist.mesh @mesh = <["data"=2, "model"=2]
func.func @main(%x: tensor<65536x512xbf16> {nn.input = "x"}, %up: tensor<512x512xbf16> {nn.parameter = "up"},
                %down: tensor<512x512xbf16> {nn.parameter = "down"})
    -> (tensor<65536x512xbf16> {nn.output = "y"}) {
  %0 = nn.linear %x, %up : (tensor<65536x512xbf16>, tensor<512x512xbf16>) -> tensor<65536x512xbf16>
  %1 = nn.relu %0 : tensor<65536x512xbf16>
  %2 = nn.linear %1, %down : (tensor<65536x512xbf16>, tensor<512x512xbf16>) -> tensor<65536x512xbf16>
  return %2 : tensor<65536x512xbf16>
}
