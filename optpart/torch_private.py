"""The only file that touches torch's private API.

Every name below is private to torch: it moves without notice.  Each function asks by feature, never by
version number, and says where the name was seen.

==============================  =======================================================  ============
what we use                     where it lives                                           seen in
==============================  =======================================================  ============
extraction, tags, op lists      torch._functorch.partitioners                            2.9 - 2.14
fx_graph_cse                    torch._functorch.compile_utils                           2.9 - 2.14
is_opaque_node                  torch._functorch._aot_autograd.graph_compile             2.12 - 2.14
output descriptors              torch._functorch._aot_autograd.descriptors               2.9 - 2.14
run_and_save_rng_state          torch._prims.rng_prims                                   2.9 - 2.14
FakeTensorMode, unset...        torch._subclasses.fake_tensor                            2.9 - 2.14
CustomPartitionerFn             torch._inductor.custom_graph_pass                        2.9 - 2.14
CustomRuntimeEstimator, ...     torch._inductor.custom_graph_pass                        2.13
preserve_node_ordering          torch._inductor.fx_passes.control_dependencies           2.13
trace_structured                torch._logging                                           2.9 - 2.14
aot_autograd, backends          torch._dynamo.backends                                   2.9 - 2.14
==============================  =======================================================  ============
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo import config as dynamo_config
from torch._dynamo import exc as dynamo_exc
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch import partitioners as typed_partitioners
from torch._functorch.compile_utils import fx_graph_cse
from torch._inductor import custom_graph_pass
from torch._inductor.custom_graph_pass import CustomPartitionerFn, get_hash_for_files
from torch._library.utils import is_builtin
from torch._logging._internal import trace_structured
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx import _lazy_graph_module
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.proxy_tensor import is_sym_node
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import CheckpointPolicy

__all__ = [
    "CheckpointPolicy",
    "CustomKnapsackSolver",
    "CustomPartitionerFn",
    "CustomRuntimeEstimator",
    "FakeTensorMode",
    "OpOverload",
    "aot_autograd",
    "functorch_config",
    "get_hash_for_files",
    "is_sym_node",
    "must_recompute",
    "tree_leaves",
    "tree_map",
    "unset_fake_temporarily",
]

partitioners: Any = typed_partitioners  # names that only some versions have are asked for at run time
must_recompute: Callable[[fx.Node], bool] = partitioners.must_recompute
default_partition: Callable[..., tuple[fx.GraphModule, fx.GraphModule]] = partitioners.default_partition
min_cut_partition: Callable[..., tuple[fx.GraphModule, fx.GraphModule]] = (
    partitioners.min_cut_rematerialization_partition
)
if TYPE_CHECKING:
    from torch._inductor.custom_graph_pass import CustomKnapsackSolver, CustomRuntimeEstimator
else:  # whom PyTorch's memory budget asks, where it can be told
    CustomRuntimeEstimator = getattr(custom_graph_pass, "CustomRuntimeEstimator", object)
    CustomKnapsackSolver = getattr(custom_graph_pass, "CustomKnapsackSolver", object)


# ------------------------------------------------------------------------------------ the joint graph


def prepare_joint(joint: fx.GraphModule) -> fx.GraphModule:
    """A copy of the joint module after the passes that PyTorch's own partitioner runs before its cut.

    Dead code is removed, common subexpressions are merged (if functorch's ``cse`` is on), and the tags
    of activation checkpointing, collectives, effects and mutation sources are set.  The module that is
    given keeps its graph, so it can still be handed to another partitioner.
    """
    joint.graph.eliminate_dead_code()
    graph = fx_graph_cse(joint.graph) if functorch_config.cse else copy_graph(joint.graph)
    with lazy_modules():
        module = make_graph_module(joint, graph)
    if partitioners.has_recomputable_ops(module):
        _cleanup_recompute_tags(module)
    if not functorch_config.unsafe_allow_optimization_of_collectives:
        partitioners.force_save_collectives(module)
    if hasattr(partitioners, "force_save_effectful_ops"):
        partitioners.force_save_effectful_ops(module)
    partitioners.force_save_bw_mutation_src(module)
    return module


def copy_graph(graph: fx.Graph) -> fx.Graph:
    """A copy with the same node names and shallow copies of their ``meta``."""
    new = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        env[node] = new.node_copy(node, env.__getitem__)
    return new


def copy_module(module: fx.GraphModule) -> fx.GraphModule:
    """The module with a copied graph; parameters and submodules are shared."""
    return make_graph_module(module, copy_graph(module.graph))


def lazy_modules() -> contextlib.AbstractContextManager[None]:
    """Graph modules made inside write their Python code only when they are called, which ours mostly never are."""
    manager: contextlib.AbstractContextManager[None] = _lazy_graph_module._use_lazy_graph_module(True)
    return manager


def make_graph_module(root: fx.GraphModule, graph: fx.Graph) -> fx.GraphModule:
    module: fx.GraphModule = _lazy_graph_module._make_graph_module(root, graph)
    return module


def _cleanup_recompute_tags(module: fx.GraphModule) -> None:
    for node in module.graph.nodes:  # outside of Dynamo regions have no number, and PyTorch's clean-up compares them
        if node.meta.get("ac_graph_id", 0) is None:
            del node.meta["ac_graph_id"]
    clean = partitioners.cleanup_recompute_tags
    keywords = {"is_default_partition": False}
    clean(module, **{k: v for k, v in keywords.items() if k in inspect.signature(clean).parameters})  # 2.9: none


def split_outputs(joint: fx.GraphModule, num_fwd_outputs: int) -> tuple[list[Any], list[Any]]:
    """The joint outputs of the forward and those of the backward."""
    forward, backward, *_ = partitioners._extract_fwd_bwd_outputs(joint, num_fwd_outputs=num_fwd_outputs)
    return list(forward), list(backward)


def output_descriptors(joint: fx.GraphModule) -> Sequence[Any]:
    """One descriptor for each joint output; empty where this torch writes none."""
    desc: Sequence[Any] = joint.graph.output_node().meta.get("desc") or ()
    return desc


def replayed_mutations(joint: fx.GraphModule) -> set[Any]:
    """Descriptors of the inputs that the runtime overwrites after the forward has run."""
    return {d.mutated_input for d in output_descriptors(joint) if hasattr(d, "mutated_input")}


def is_tangent(node: fx.Node) -> bool:
    return node.op == "placeholder" and "tangents" in str(node.target)


def is_primal(node: fx.Node) -> bool:
    return bool(partitioners._is_primal(node) or partitioners._is_fwd_seed_offset(node))


def is_parameter_like(node: fx.Node) -> bool:
    """A forward input of the user's (``static_lifetime_input_indices`` counts these)."""
    return bool(partitioners._is_primal(node))


def is_backward_input(node: fx.Node) -> bool:
    """Seeds, offsets and states that only the backward is given."""
    return bool(partitioners._is_bwd_seed_offset(node))


def is_backward_state(node: fx.Node) -> bool:
    return bool(partitioners._is_backward_state(node))


def is_opaque(node: fx.Node) -> bool:
    """A node that holds no tensor but an object (a process group, a script object)."""
    if is_script_object(node):
        return True
    try:
        from torch._functorch._aot_autograd.graph_compile import is_opaque_node
    except ImportError:
        return False
    return bool(is_opaque_node(node))


def is_script_object(node: fx.Node) -> bool:
    from torch._library.fake_class_registry import FakeScriptObject

    return isinstance(node.meta.get("val"), FakeScriptObject)


def has_effect_token(node: fx.Node) -> bool:
    return bool(partitioners.is_with_effects(node))


def must_be_in_backward(node: fx.Node) -> bool:
    return bool(partitioners._must_be_in_backward(node))


def must_be_in_forward(node: fx.Node) -> bool:
    return bool(partitioners._must_be_in_forward(node))


def tagged_backward(node: fx.Node) -> bool:
    """AOTAutograd traced this node while it ran the backward."""
    return bool(partitioners._has_tag_is_backward(node))


def tagged(node: fx.Node) -> bool:
    """AOTAutograd noted where it traced this node (it does not inside a custom Function's backward)."""
    return "partitioner_tag" in node.meta


def only_asserted(node: fx.Node) -> bool:
    return bool(partitioners._is_assert_only_symbool(node))


def is_collective(node: fx.Node) -> bool:
    return getattr(node.target, "namespace", None) == "_c10d_functional"


def is_custom(node: fx.Node) -> bool:
    """An operator that torch does not ship."""
    return isinstance(node.target, OpOverload) and not is_builtin(node.target)


def is_higher_order(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def region_body(module: fx.GraphModule, node: fx.Node) -> tuple[fx.Graph, tuple[Any, ...]] | None:
    """(graph, operands) of a call of a nested region (``nested_compile_region``); None for any other node."""
    if node.target is not torch.ops.higher_order.invoke_subgraph:
        return None
    return getattr(module, str(node.args[0].target)).graph, node.args[2:]  # type: ignore[union-attr]  # (get_attr, name, *)


def cheap_to_redo() -> Callable[[fx.Node], bool]:
    """PyTorch's own list of the ops whose recompute it takes for free."""
    is_recomputable: Callable[[fx.Node], bool] = partitioners.get_default_op_list().is_recomputable
    return is_recomputable


def size_hint(size: int | torch.SymInt, fallback: int = 4096) -> int:
    """A number for a size, without a guard; ``fallback`` for an unbacked one (PyTorch's own choice)."""
    if isinstance(size, int):
        return size
    shapes: Any = symbolic_shapes
    hint = shapes.optimization_hint if hasattr(shapes, "optimization_hint") else shapes.hint_int  # up to 2.11
    return int(hint(size, fallback=fallback))


@contextlib.contextmanager
def more_outputs(joint: fx.GraphModule, more: Sequence[fx.Node]) -> Iterator[None]:
    """For a while the joint module's backward returns some more nodes, so that extraction hands them over."""
    output = joint.graph.output_node()
    args, meta = output.args, output.meta
    if more:
        output.args = ((*args[0], *more),)  # type: ignore[misc]  # an output's argument is a tuple
        if "desc" in meta:  # a nested region's outputs have no descriptors
            output.meta = meta | {"desc": [*meta["desc"], *(None for _ in more)]}
    try:
        yield
    finally:
        output.args, output.meta = args, meta


def extract(
    joint: fx.GraphModule,
    saved_values: list[fx.Node],
    saved_sym_nodes: list[fx.Node],
    saved_opaque_nodes: list[fx.Node],
    *,
    num_fwd_outputs: int,
    static_nodes: Iterable[fx.Node],
) -> tuple[fx.GraphModule, fx.GraphModule, int]:
    """Forward and backward modules with PyTorch's own conventions, and how many sizes are saved.

    Order of saved values, descriptors, symbol bindings and unused values are PyTorch's business
    (``_extract_fwd_bwd_modules``).
    """
    from torch.utils._ordered_set import OrderedSet

    keywords: dict[str, Any] = {"num_fwd_outputs": num_fwd_outputs}
    keywords["static_lifetime_input_nodes"] = OrderedSet(static_nodes)
    if saved_opaque_nodes:
        keywords["saved_opaque_nodes"] = saved_opaque_nodes
    forward, backward = partitioners._extract_fwd_bwd_modules(joint, saved_values, saved_sym_nodes, **keywords)
    return forward, backward, len(saved_sym_nodes)


def thread_rng_from_regions(module: fx.GraphModule, *, is_backward: bool) -> fx.GraphModule:
    """Hand the generator states of nested regions through (absent before 2.12)."""
    thread = getattr(partitioners, "thread_graphsafe_rng_from_hops", None)
    return module if thread is None else thread(module, is_backward=is_backward)


def offload(
    forward: fx.GraphModule, backward: fx.GraphModule, num_fwd_outputs: int, static_nodes: Iterable[fx.Node]
) -> None:
    """Honour functorch's ``enable_activation_offloading``."""
    if not getattr(functorch_config, "enable_activation_offloading", False):
        return
    from torch._functorch._activation_offloading.activation_offloading import enable_activation_offloading
    from torch.utils._ordered_set import OrderedSet

    enable_activation_offloading(forward, backward, num_fwd_outputs, OrderedSet(static_nodes))


# ------------------------------------------------------------------------------------- random numbers


def is_random(node: fx.Node) -> bool:
    """Does this call draw random numbers?  An attention or dropout with probability 0 does not."""
    target = node.target
    if not isinstance(target, OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    bound = dict(zip((a.name for a in target._schema.arguments), node.args)) | dict(node.kwargs)
    for a in target._schema.arguments:
        bound.setdefault(a.name, a.default_value if a.has_default_value() else None)
    if bound.get("dropout_p") == 0:
        return False
    return not ("dropout" in str(target) and (bound.get("p") == 0 or bound.get("train") is False))


def unused_statistics(node: fx.Node) -> frozenset[fx.Node]:
    """The running statistics that a batch norm in training is given and does not need.

    Its backward never looks at them; its forward makes nothing of them but the new ones, which may be unused too.
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return frozenset()
    given = dict(zip((a.name for a in schema.arguments), node.args)) | dict(node.kwargs)
    statistics = frozenset(n for k in ("running_mean", "running_var") if isinstance(n := given.get(k), fx.Node))
    new = {i for i, result in enumerate(schema.returns) if result.name in ("running_mean_out", "running_var_out")}
    if not statistics or not given.get("training", given.get("train", given.get("update", True))):
        return frozenset()
    if not new and "backward" not in schema.name:
        return frozenset()
    taken = [u for u in node.users if is_getitem(u) and u.args[1] in new]
    return statistics if all(u in unused_statistics(reader) for u in taken for reader in u.users) else frozenset()


def has_own_generator(node: fx.Node) -> bool:
    return node.kwargs.get("generator") is not None


def run_and_save_rng_state() -> Any:
    return torch._prims.rng_prims.run_and_save_rng_state


def run_with_rng_state() -> Any:
    return torch._prims.rng_prims.run_with_rng_state


def fake_rng_state(node: fx.Node) -> torch.Tensor:
    """A fake tensor shaped like the state of the generator that this call draws from."""
    values = [v for v in tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]
    on_cuda = bool(values) and values[0].device.type == "cuda"
    with unset_fake_temporarily():
        state = torch.cuda.get_rng_state(values[0].device) if on_cuda else torch.get_rng_state()
    mode = next((v.fake_mode for v in values if hasattr(v, "fake_mode")), None) or FakeTensorMode()
    return mode.from_tensor(state, static_shapes=True)


def saved_descriptor(position: int) -> Any:
    """The descriptor of one more saved value in the forward's outputs; None where torch has none."""
    with contextlib.suppress(ImportError):
        from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput

        return SavedForBackwardsAOTOutput(position)
    return None


# ------------------------------------------------------------------------------------------- tracing


def log_artifact(name: str, payload: Callable[[], str]) -> None:
    """A structured-trace artifact (shown by tlparse); costs nothing when nobody listens."""
    trace_structured("artifact", metadata_fn=lambda: {"name": name, "encoding": "string"}, payload_fn=payload)


@contextlib.contextmanager
def pytorch_budget(budget: float) -> Iterator[None]:
    """Set PyTorch's ``activation_memory_budget`` for a while."""
    with functorch_config.patch(activation_memory_budget=budget):
        yield


@contextlib.contextmanager
def budget_hooks(estimator: Any, solver: Any, budget: float | None) -> Iterator[None]:
    """Have PyTorch's memory budget ask these two for a while, and set it, unless it is None.

    Raises:
        RuntimeError: this torch asks nobody.
    """
    if object in (CustomRuntimeEstimator, CustomKnapsackSolver):
        raise RuntimeError(f"torch {torch.__version__} has no CustomRuntimeEstimator and CustomKnapsackSolver; 2.13 has")
    changes = {
        "activation_memory_budget_runtime_estimator": estimator,
        "activation_memory_budget_solver": solver,
        **({} if budget is None else {"activation_memory_budget": budget}),
    }
    with functorch_config.patch(changes):
        yield


def size_of(node: fx.Node) -> int:
    """Bytes that PyTorch's partitioner counts for a node."""
    return int(partitioners._size_of(node))


def copy_node_meta(node: fx.Node) -> dict[str, Any]:
    return copy.copy(node.meta)


def is_getitem(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


# ------------------------------------------------------------------------------- backends and capture


def aot_eager_backend(partition_fn: Callable[..., Any]) -> Callable[..., Any]:
    """A ``torch.compile`` backend that runs the partitioned graphs as they are (boxed: inputs are freed)."""
    from torch._dynamo.backends.debugging import boxed_nop

    backend: Callable[..., Any] = aot_autograd(
        fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=partition_fn, keep_inference_input_mutations=True
    )
    return backend


def compile_with_inductor(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, partitioner: Any, options: dict[str, Any] | None = None
) -> Any:
    """Inductor's own compile of a Dynamo graph, with our partitioner in it; the user's options go first."""
    from torch._inductor.compile_fx import compile_fx

    own = getattr(partitioner, "options", {"custom_partitioner_fn": partitioner})
    return compile_fx(gm, list(example_inputs), config_patches={**own, **(options or {})})


# Inductor's options under which held steps keep a peak: it reuses a buffer by holding on to it after its last reader
# (7 to 13 % of the peak on a Llama-style decoder and a GPT), and copies a convolution's operands to another layout (13 % on
# a U-Net).  They travel with the compile, since the backward is compiled later.
HOLDING_OPTIONS = {"allow_buffer_reuse": False, "layout_optimization": False}
# On a CPU the layout of convolutions stays as it is in any case: with torch 2.13 the masks that a VGG saves come back in
# another layout than they were written in, and its gradients are zero, also with PyTorch's own min-cut.
CPU_OPTIONS = {"layout_optimization": False}


def inside_inductor() -> bool:
    """Is this partition for Inductor?  Its option for a partitioner is set while it compiles; a wrapper around ours may have
    dropped the keyword ``compiler``."""
    from torch._inductor import config

    return getattr(config, "custom_partitioner_fn", None) is not None


def hold(module: fx.GraphModule, waiting: Mapping[fx.Node, Sequence[fx.Node]]) -> None:
    """Make nodes wait for others, in a form that Inductor's scheduler keeps (its control dependencies).

    Only calls of ATen-like operators can wait, and only for nodes that make a tensor.
    """
    from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
    from torch.utils._ordered_set import OrderedSet

    edges = {}
    for node, others in waiting.items():
        if isinstance(node.target, OpOverload):
            tensors = [t for t in map(_tensor_of, others) if t is not None]
            if tensors:
                edges[node] = OrderedSet(tensors)
    preserve_node_ordering(module.graph, edges)
    module.graph.lint()  # a node that waits for a later one would only be found in the middle of a compile
    module.recompile()


def _tensor_of(node: fx.Node) -> fx.Node | None:
    """A node that is a tensor: the call itself, or one of its results."""
    return next((n for n in (node, *node.users) if isinstance(n.meta.get("val"), torch.Tensor)), None)


@dataclass(frozen=True)
class Joint:
    """One joint graph as AOTAutograd hands it to a ``partition_fn``."""

    module: fx.GraphModule
    inputs: Any
    num_fwd_outputs: int
    static_lifetime_input_indices: tuple[int, ...]


class _Seen(Exception):
    """Stops a compile once the joint graph is there."""


def trace_joint(model: Callable[..., Any], args: Sequence[Any], *, decompose: bool = False) -> list[Joint]:
    """The joint graphs of ``model(*args)``, through Dynamo, for the shapes that are given.

    Nothing is executed and nothing of the model changes, unless it breaks into several graphs: then a
    copy of the model runs its forward once, so that every graph is seen.  ``decompose`` applies
    Inductor's decompositions.

    Raises:
        ValueError: no graph needs a gradient.
    """
    from torch._inductor.decomposition import select_decomp_table

    found: list[Joint] = []

    def record(joint: fx.GraphModule, joint_inputs: Any, **kw: Any) -> Any:
        static = tuple(kw.get("static_lifetime_input_indices") or ())
        copy_of_it = copy_module(joint)
        copy_of_it.meta.update(joint.meta)
        if joint_inputs:
            found.append(Joint(copy_of_it, joint_inputs, kw["num_fwd_outputs"], static))
        if stop and joint_inputs:
            raise _Seen
        return default_partition(joint, joint_inputs, num_fwd_outputs=kw["num_fwd_outputs"])

    keywords = {"decompositions": select_decomp_table()} if decompose else {}
    backend = aot_autograd(
        fw_compiler=_boxed, bw_compiler=_boxed, partition_fn=record, keep_inference_input_mutations=True, **keywords
    )
    for stop in (True, False):
        found.clear()
        try:
            with torch.enable_grad(), dynamo_config.patch(recompile_limit=2**16, suppress_errors=False):
                torch.compile(model if stop else copy.deepcopy(model), backend=backend, fullgraph=stop, dynamic=False)(
                    *args
                )
        except dynamo_exc.BackendCompilerFailed as e:
            if not isinstance(e.inner_exception, _Seen):
                raise
        except dynamo_exc.Unsupported:
            continue  # a graph break: once more, without stopping at the first graph
        break
    if not found:
        raise ValueError("the model has no joint graph: nothing that it returns needs a gradient")
    return found


def _boxed(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
    from torch._functorch._aot_autograd.utils import make_boxed_func

    boxed: Callable[..., Any] = make_boxed_func(gm.forward)
    return boxed


def compiler_backend(compiler: str, partitioner: Any) -> Callable[..., Any]:
    """The ``torch.compile`` backend for a compiler's name ("aot_eager" or "inductor")."""
    if compiler == "aot_eager":
        return aot_eager_backend(partitioner)
    if compiler == "inductor":
        return functools.partial(compile_with_inductor, partitioner=partitioner)
    raise ValueError(f"compiler={compiler!r}: expected 'inductor' or 'aot_eager'")


def compile_fresh(model: Callable[..., Any], backend: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compile`` that no earlier compile of the same code stands in the way of.

    Dynamo counts recompiles by code object, and turns sizes that differ from an earlier call's into
    symbols; a check that compiles one model many times wants neither.
    """
    compiled = torch.compile(model, backend=backend, dynamic=False)

    def call(*args: Any) -> Any:
        with dynamo_config.patch(recompile_limit=2**16, accumulated_recompile_limit=2**16):
            return compiled(*args)

    return call


def allocation_events(prof: Any) -> list[int]:
    """Signed sizes of the CPU allocator's events in the order of time."""
    events = [
        (e.start_ns(), i, e.nbytes())
        for i, e in enumerate(prof.profiler.kineto_results.events())
        if e.name() == "[memory]"
    ]
    return [nbytes for _, _, nbytes in sorted(events)]


def allocations_within(prof: Any, mark: str) -> dict[str, list[int]]:
    """The CPU allocator's events by region: signed sizes while a ``record_function`` runs whose name starts with ``mark``."""
    events = sorted(prof.profiler.kineto_results.events(), key=lambda e: int(e.start_ns()))
    regions = [(e.start_ns(), e.start_ns() + e.duration_ns(), e.name()) for e in events if e.name().startswith(mark)]
    memory = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    return {name: [nbytes for at, nbytes in memory if start <= at <= end] for start, end, name in regions}


def profiler_running() -> bool:
    """Is the user profiling?  A second profiler would end the first one, and its results with it."""
    return bool(torch.autograd.profiler._is_profiler_enabled)
