// RUN: sharding-opt %s --verify-diagnostics --report-communication="entry=train"

// expected-error@+1 {{report on communication: the program has no entry 'train'}}
module {
  dist.mesh @mesh = <["tp"=2]>
  // expected-note@+1 {{it has 'a'}}
  func.func @a() attributes {dist.spmd = @mesh} {
    return
  }
  // expected-note@+1 {{it has 'b'}}
  func.func @b() attributes {dist.spmd = @mesh} {
    return
  }
}
