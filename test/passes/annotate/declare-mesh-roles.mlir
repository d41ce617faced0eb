// RUN: sharding-opt %s --declare-mesh="mesh=dp=2,tp=4,x=2 roles=data=auto" | FileCheck %s --check-prefix=USUAL
// RUN: sharding-opt %s --declare-mesh="mesh=dp=2,tp=4,x=2 roles=data=none,tensor=x,ring=tp,ulysses=dp" | FileCheck %s --check-prefix=NAMED
// RUN: sharding-opt %s --declare-mesh="mesh=dp=2,tp=4,x=2 roles=data=x" --declare-mesh="roles=tensor=none" | FileCheck %s --check-prefix=TWICE
// RUN: sharding-opt %s --declare-mesh="mesh=dp=2,tp=4 roles=data=tp" | sharding-opt --declare-mesh="mesh=dp=2,tp=4" | FileCheck %s --check-prefix=KEPT
// RUN: sharding-opt %s --declare-mesh="mesh=a:dp=2,tp=3;b:dp=3,sp=2 roles=tensor=sp" | FileCheck %s --check-prefix=STAGES
// RUN: sharding-opt %s --declare-mesh="mesh=a:dp=2,tp=3;b:dp=3,sp=2 roles=tensor=sp" | sharding-opt --declare-mesh="mesh=a:dp=2,tp=3;b:dp=3,sp=2" | FileCheck %s --check-prefix=STAGES
// RUN: sharding-opt %s --pass-pipeline='builtin.module(declare-mesh{mesh=dp=2,tp=4 roles=ulysses=auto,data=none})' --dump-pass-pipeline -o /dev/null 2>&1 | FileCheck %s --check-prefix=PRINTED
// RUN: not sharding-opt %s --declare-mesh="mesh=dp=2 roles=tensor=tp" 2>&1 | FileCheck %s --check-prefix=MISSING
// RUN: not sharding-opt %s --declare-mesh="mesh=dp=2 roles=ring=sp" 2>&1 | FileCheck %s --check-prefix=RING
// RUN: not sharding-opt %s --declare-mesh="mesh=dp=2 roles=model=dp" 2>&1 | FileCheck %s --check-prefix=ROLE
// RUN: not sharding-opt %s --parallelize="mesh=dp=2 tensor-parallel=tp" 2>&1 | FileCheck %s --check-prefix=MISSING
// RUN: sharding-opt %s --parallelize="mesh=dp=2,tp=2,x=1" | FileCheck %s --check-prefix=SPMD
// RUN: sharding-opt %s --declare-mesh="mesh=a:dp=2,tp=2;b:dp=4,sp=1 roles=data=auto" --annotate-data-parallel --propagate-shardings --partition | FileCheck %s --check-prefix=CLEARED

// Each axis gets a list of roles, which may be empty. The usual axes have roles that the option leaves out.

// USUAL: dist.mesh @mesh = <["dp"=2 {roles = [data]}, "tp"=4 {roles = [tensor]}, "x"=2 {roles = []}]>
// NAMED: dist.mesh @mesh = <["dp"=2 {roles = [ulysses]}, "tp"=4 {roles = [ring]}, "x"=2 {roles = [tensor]}]>

// What the mesh says stands for auto, and options replace it.

// TWICE: dist.mesh @mesh = <["dp"=2 {roles = []}, "tp"=4 {roles = []}, "x"=2 {roles = [data]}]>
// KEPT: dist.mesh @mesh = <["dp"=2 {roles = []}, "tp"=4 {roles = [data, tensor]}]>

// Each stage has roles of its own.

// STAGES: dist.mesh @mesh = <["ranks"=6]> {dist.stages = {a = #dist.mesh<["dp"=2 {roles = [data]}, "tp"=3 {roles = []}]>, b = #dist.mesh<["dp"=3 {roles = [data]}, "sp"=2 {roles = [tensor]}]>}}

// PRINTED: declare-mesh{device= mesh=dp=2,tp=4 replaces-device=false roles=data=none,ulysses=auto target=}
// MISSING: error: 'dist.mesh' op has no axis "tp" for tensor parallelism: expected one of "dp"
// RING: error: 'dist.mesh' op has no axis "sp" for ring attention: expected one of "dp"
// ROLE: for the --roles option: unknown role 'model' in 'model=dp': expected role=axis with data, tensor, ring

// An SPMD program has no roles.

// SPMD: dist.mesh @mesh = <["dp"=2, "tp"=2, "x"=1], device = "h100">
// CLEARED: dist.mesh @mesh = <{{.*}}]> {dist.stages = {a = #dist.mesh<["dp"=2, "tp"=2]>, b = #dist.mesh<["dp"=4, "sp"=1]>}}

func.func @main(%x: tensor<8x16xf32> {nn.input = "a.x"}) -> (tensor<8x16xf32> {nn.output = "y"}) {
  %0 = nn.relu %x {nn.stage = "a"} : tensor<8x16xf32>
  %1 = nn.relu %0 {nn.stage = "b"} : tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}
