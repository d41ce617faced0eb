// REQUIRES: mpi
// UNSUPPORTED: sanitizer
// RUN: sharding-run %s --random-inputs=1 --outputs=%t.local
// RUN: meshwright-mpirun -np 2 sharding-run %s --random-inputs=1 --backend=mpi --outputs=%t.mpi
// RUN: cmp %t.local %t.mpi
// RUN: not meshwright-mpirun -np 3 sharding-run %s --random-inputs=1 --backend=mpi 2>&1 | FileCheck %s
// RUN: not sharding-run %s --random-inputs=1 --backend=mpi:swift 2>&1 | FileCheck %s --check-prefix=MODE

// CHECK: the program has 2 ranks, and there are 3 processes: start it by 'mpirun -np 2 ...'
// MODE: there is no mode 'swift': expected 'mpi' or 'mpi:fast'

dist.mesh @m = <["x"=2]>
func.func @main(%a: tensor<1x100xf32> {nn.input = "a", dist.global = tensor<2x100xf32>, dist.sharding = #dist.sharding<@m, [{"x"}, {}]>})
    -> (tensor<100xf32> {nn.output = "y", dist.global = tensor<100xf32>, dist.sharding = #dist.sharding<@m, [{}]>})
    attributes {dist.spmd = @m} {
  %p = nn.reduce sum %a dims [0] : (tensor<1x100xf32>) -> tensor<100xf32>
  %0 = dist.all_reduce sum %p axes ["x"] : (tensor<100xf32>) -> tensor<100xf32>
  return %0 : tensor<100xf32>
}
