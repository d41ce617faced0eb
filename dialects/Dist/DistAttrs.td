//===- DistAttrs.td - meshes and shardings ------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_DISTATTRS_TD
#define MESHWRIGHT_DIALECTS_DIST_DISTATTRS_TD

include "meshwright/dialects/Dist/DistDialect.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"

class Dist_Attr<string name, string attrMnemonic, list<Trait> traits = []>
    : AttrDef<Dist_Dialect, name, traits> {
  let mnemonic = attrMnemonic;
}

/// How partial values combine: by a sum, by a maximum, as pairs of a value and a log-sum-exp, or
/// each at a place of its own.
def Dist_ReductionKind : I32EnumAttr<"ReductionKind", "how partial values combine", [
    I32EnumAttrCase<"Sum", 0, "sum">, I32EnumAttrCase<"Max", 1, "max">,
    I32EnumAttrCase<"Merge", 2, "merge">, I32EnumAttrCase<"Place", 3, "place">]> {
  let cppNamespace = "::meshwright::dist";
  let genSpecializedAttr = 0;
}
def Dist_ReductionKindAttr : EnumAttr<Dist_Dialect, Dist_ReductionKind, "reduction"> {
  let assemblyFormat = "$value";
}
/// The kinds that a collective computes.
def Dist_CollectiveReductionAttr : ConfinedAttr<Dist_ReductionKindAttr, [AttrConstraint<
    CPred<"::llvm::is_contained({::meshwright::dist::ReductionKind::Sum, "
          "::meshwright::dist::ReductionKind::Max}, "
          "::llvm::cast<::meshwright::dist::ReductionKindAttr>($_self).getValue())">,
    "in a collective: sum or max">]>;

/// The one list of collectives. Switches over it have no default case, so that the
/// compiler names each place that a new kind has to fill.
def Dist_AllReduceKind : I32EnumAttrCase<"AllReduce", 0, "all_reduce">;
def Dist_ReduceScatterKind : I32EnumAttrCase<"ReduceScatter", 1, "reduce_scatter">;
def Dist_AllGatherKind : I32EnumAttrCase<"AllGather", 2, "all_gather">;
def Dist_AllToAllKind : I32EnumAttrCase<"AllToAll", 3, "all_to_all">;
def Dist_PermuteKind : I32EnumAttrCase<"Permute", 4, "permute">;
def Dist_RedistributeKind : I32EnumAttrCase<"Redistribute", 5, "redistribute">;
def Dist_SliceKind : I32EnumAttrCase<"Slice", 6, "slice">;
def Dist_PartialKind : I32EnumAttrCase<"Partial", 7, "partial">;
def Dist_AllGatherVKind : I32EnumAttrCase<"AllGatherV", 8, "all_gather_v">;
def Dist_ReduceScatterVKind : I32EnumAttrCase<"ReduceScatterV", 9, "reduce_scatter_v">;
def Dist_CollectiveKind : I32EnumAttr<"CollectiveKind", "kinds of collectives", [
    Dist_AllReduceKind, Dist_ReduceScatterKind, Dist_AllGatherKind, Dist_AllToAllKind,
    Dist_PermuteKind, Dist_RedistributeKind, Dist_SliceKind, Dist_PartialKind, Dist_AllGatherVKind,
    Dist_ReduceScatterVKind]> {
  let cppNamespace = "::meshwright::dist";
  let genSpecializedAttr = 0;
}

/// The words of reports. Collectives of different roles have streams of their own.
def Dist_CollectiveRole : I32EnumAttr<"CollectiveRole", "the kind of value that a collective moves", [
    I32EnumAttrCase<"Data", 0, "data">, I32EnumAttrCase<"Weights", 1, "weights">,
    I32EnumAttrCase<"Gradients", 2, "gradients">, I32EnumAttrCase<"Saved", 3, "saved">]> {
  let cppNamespace = "::meshwright::dist";
  let genSpecializedAttr = 0;
}
def Dist_CollectiveRoleAttr : EnumAttr<Dist_Dialect, Dist_CollectiveRole, "role"> {
  let assemblyFormat = "$value";
}
def Dist_RoleAttr
    : DefaultValuedAttr<Dist_CollectiveRoleAttr, "::meshwright::dist::CollectiveRole::Data">;

def Dist_FormAttr : Dist_Attr<"Form", "form"> {
  let summary = "the form in which a weight travels: codes, with the scales of their blocks beside them";
  let description = [{
    The encoding of a tensor of codes, of two dimensions. The blocks are those of `kind`:
    - mxfp8: f8E4M3FN, with a power of two for each 32 elements along the dimension `along`, which a
      product contracts;
    - nvfp4: f4E2M1FN, with an f8E4M3FN for each 16 x 16 elements and an f32 for all of the weight.

    Blocks are counted from the first row and column of the tensor, and a block may be cut at the end.
    In memory a row of blocks is stored together: its codes, its scales, and the f32.

    On a `dist.fetch` or a `dist.round` the form has no `along`, because readers decide it.

    ```mlir
    #dist.form<mxfp8 along 1>
    #dist.form<nvfp4>
    ```
  }];
  let parameters = (ins "::meshwright::GatherKind":$kind,
                        DefaultValuedParameter<"int64_t", "-1">:$along);
  let assemblyFormat = "`<` $kind (`along` $along^)? `>`";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// The type in this form of a tensor of floats.
    ::mlir::RankedTensorType getType(::mlir::RankedTensorType weight) const;
    /// The groups of rows that are stored together, and the bytes of each.
    int64_t getNumGroups(int64_t rows) const;
    int64_t getGroupBytes(int64_t columns) const;
  }];
}

def Dist_MeshAxisAttr : Dist_Attr<"MeshAxis", "axis"> {
  let summary = "a named axis of a mesh, with its link and its roles";
  let description = [{
    `bandwidth` is in bytes per second, `latency` in seconds; 0 bandwidth means
    "not given".

    `roles` are the purposes that the axis serves while policies run, of which it may have
    none (`[]`); without a list no pass has declared them. `order` is the order of sequences
    on an axis with the role ring, where it has been chosen.
  }];
  let parameters = (ins StringRefParameter<>:$name, "int64_t":$size,
                        APFloatParameter<"">:$linkBandwidth, APFloatParameter<"">:$linkLatency,
                        "std::optional<::meshwright::AxisRoles>":$roles,
                        "std::optional<::meshwright::TokenOrder>":$order);
  let hasCustomAssemblyFormat = 1;
  let extraClassDeclaration = [{
    static MeshAxisAttr get(::mlir::MLIRContext *context, ::llvm::StringRef name, int64_t size,
                            double bandwidth = 0, double latency = 0) {
      return get(context, name, size, ::llvm::APFloat(bandwidth), ::llvm::APFloat(latency),
                 std::nullopt, std::nullopt);
    }
    /// The same axis with these roles and this order.
    MeshAxisAttr withRoles(std::optional<::meshwright::AxisRoles> roles,
                           std::optional<::meshwright::TokenOrder> order) const {
      return get(getContext(), getName(), getSize(), getLinkBandwidth(), getLinkLatency(), roles,
                 order);
    }
    bool hasRole(::meshwright::AxisRole role) const {
      return getRoles() && getRoles()->contains(role);
    }
    /// Bytes per second; 0 if not given.
    double getBandwidth() const { return getLinkBandwidth().convertToDouble(); }
    /// Seconds.
    double getLatency() const { return getLinkLatency().convertToDouble(); }
  }];
}

def Dist_MeshAttr : Dist_Attr<"Mesh", "mesh"> {
  let summary = "named axes with sizes, major to minor";
  let description = [{
    Ranks are numbered row-major in the order in which the axes are written.

    ```mlir
    dist.mesh @mesh = <["dp"=2, "tp"=4]>
    dist.mesh @linked = <["host"=2 {bandwidth = 5.0e10, latency = 1.0e-5}, "tp"=8], device = "h100">
    ```

    Policies look up axes by their roles. Either all axes have a list of roles, or none has
    one. A role may have several axes, except for ring and ulysses, and an axis several roles.

    ```mlir
    dist.mesh @declared = <["dp"=2 {roles = [data]}, "sp"=4 {roles = [ring], order = zigzag}, "x"=2 {roles = []} ]>
    ```
  }];
  let parameters = (ins ArrayRefParameter<"MeshAxisAttr">:$axes,
                        StringRefParameter<>:$device);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// Number of ranks: the product of the axis sizes.
    int64_t getNumRanks() const;
    /// Index of the axis of that name, or -1.
    int getAxisIndex(llvm::StringRef name) const;

    /// Returns true if the roles of all axes are known.
    bool hasRoles() const;
    /// The names of the axes that have the role, major to minor.
    ::llvm::SmallVector<::llvm::StringRef> getAxesWithRole(::meshwright::AxisRole role) const;
    /// The same mesh, on which the axes of these names, and no others, have the role. An axis
    /// whose roles were not known has no other role.
    MeshAttr withRole(::meshwright::AxisRole role, ::llvm::ArrayRef<::llvm::StringRef> names) const;
    /// The same mesh, where sequences have this order on an axis.
    MeshAttr withOrder(::llvm::StringRef name, ::meshwright::TokenOrder order) const;
    /// The same mesh, whose axes have neither roles nor orders.
    MeshAttr withoutRoles() const;
  }];
}

def Dist_AxisRefAttr : Dist_Attr<"AxisRef", "axis_ref"> {
  let summary = "an axis of a mesh, or a part of one";
  let description = [{
    `"tp"` is the whole axis. `"tp":(2)4` is a part: the axis seen as the
    product of 2, 4 and the rest (major to minor), of which it names the 4.
    `subSize` 0 stands for the whole axis.
  }];
  let parameters = (ins StringRefParameter<>:$name, "int64_t":$preSize, "int64_t":$subSize);
  let hasCustomAssemblyFormat = 1;
  let extraClassDeclaration = [{
    /// Returns true if an axis of this size has the part.
    bool divides(int64_t axisSize) const {
      return getSubSize() == 0 ||
             (axisSize % getPreSize() == 0 && axisSize / getPreSize() % getSubSize() == 0);
    }
  }];
}

def Dist_FactorShardingAttr : Dist_Attr<"FactorSharding", "factor"> {
  let summary = "how one factor of a dimension is sharded";
  let description = [{
    `size` is the factor's true size, `padded` its padded size; both are 0 when
    the factor is the whole dimension and its sizes follow from the types. `order`
    is the order of its elements, which is made for `orderRanks` ranks. `runtimeSize` names
    the number of true elements where it comes when the program runs; `size` is then the most
    that it may be. It is null for a size that the program states.
  }];
  let parameters = (ins "int64_t":$size, "int64_t":$padded, "::meshwright::TokenOrder":$order,
                        "int64_t":$orderRanks, ArrayRefParameter<"AxisRefAttr">:$axes,
                        "::mlir::FlatSymbolRefAttr":$runtimeSize);
  let builders = [AttrBuilder<(ins "int64_t":$size, "int64_t":$padded,
      "::meshwright::TokenOrder":$order, "int64_t":$orderRanks,
      "::llvm::ArrayRef<AxisRefAttr>":$axes), [{
    return $_get($_ctxt, size, padded, order, orderRanks, axes, ::mlir::FlatSymbolRefAttr());
  }]>];
  let hasCustomAssemblyFormat = 1;
}

def Dist_DimShardingAttr : Dist_Attr<"DimSharding", "dim"> {
  let summary = "how one dimension is sharded: its factors, major to minor";
  let parameters = (ins ArrayRefParameter<"FactorShardingAttr">:$factors, "bool":$isOpen);
  let hasCustomAssemblyFormat = 1;
}

def Dist_ShardingAttr : Dist_Attr<"Sharding", "sharding"> {
  let summary = "the layout of a value along the axes of a mesh";
  let description = [{
    One entry per dimension, each a list of axes, major to minor; `?` leaves the
    dimension open to propagation. Axes not mentioned replicate.

    ```mlir
    #dist.sharding<@mesh, [{"dp"}, {"tp", ?}, {} ]>
    #dist.sharding<@mesh, [{}, {} ], unreduced = {"tp"}>
    #dist.sharding<@mesh, [{"tp":(1)2}, {} ]>
    ```

    A dimension that is a product of factors (heads and head size, say) spells
    them, major to minor, each with its size, its padded size if that differs,
    and its axes. Here 6 query heads are 2 groups of 3, padded to 4. The groups
    and the heads of a group are sharded over one half each of an axis of size 4:

    ```mlir
    #dist.sharding<@mesh, [(2{"tp":(1)2}, 3 pad 4{"tp":(2)2}, 12), {} ]>
    ```

    A factor may state an order of its elements, `zigzag` or `striped`, and the number
    of ranks that the order is made for. Here rank i of 4 holds chunks i and 7 - i of the
    8 chunks of 128 tokens:

    ```mlir
    #dist.sharding<@mesh, [(128 zigzag 4{"ring"}), {} ]>
    ```

    The true size of a dimension or factor may be a number that comes when the program runs:
    an argument with this `nn.size`. Elements behind it are padding.

    ```mlir
    #dist.sharding<@mesh, [{"tp"} size @tokens, {} ]>
    #dist.sharding<@mesh, [(4 size @batch{"dp"}, 24 size @tokens), {} ]>
    ```
  }];
  let parameters = (ins "::mlir::FlatSymbolRefAttr":$mesh,
                        ArrayRefParameter<"DimShardingAttr">:$dims,
                        ArrayRefParameter<"AxisRefAttr">:$unreduced,
                        "::meshwright::dist::ReductionKind":$reduction);
  let hasCustomAssemblyFormat = 1;
  let extraClassDeclaration = [{
    int64_t getRank() const { return getDims().size(); }
    /// All dimensions without axes, nothing unreduced.
    static ShardingAttr getReplicated(::mlir::MLIRContext *context,
                                      ::mlir::FlatSymbolRefAttr mesh, int64_t rank);
    /// Checks axes against the mesh: they exist, parts divide, none is used
    /// twice.
    ::mlir::LogicalResult verifyForMesh(
        MeshAttr mesh, ::llvm::function_ref<::mlir::InFlightDiagnostic()> emitError) const;
  }];
}

#endif
