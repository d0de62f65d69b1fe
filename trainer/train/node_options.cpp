// See node_options.h.
#include "trainer/train/node_options.h"

#include "trainer/comm/frames.h"
#include "trainer/job/command_line.h"
#include "trainer/train/options.h"

namespace sluice::train {
namespace {

void supported_check(const TrainOptions& o) {
  const auto refuse = [](bool given, const char* option, const char* why) {
    if (given) throw Failure(std::string(option) + " is not for --nnodes: " + why);
  };
  refuse(o.faults.is_elastic(), "--elastic",
         "its members are led by one launcher; take --checkpoint and --resume");
  refuse(o.faults.exclusive, "--exclusive",
         "the broker of a machine knows its own GPUs alone; start each launcher by sluice run "
         "--class exclusive instead");
  refuse(o.strategy == Strategy::kAsync, "--strategy async",
         "its workers and server share memory; take data or sharded");
  refuse(o.plan_auto, "--plan auto",
         "what one node measures another does not know; choose with sluice-train plan, and give "
         "all nodes what it says");
  refuse(!o.timeline.empty(), "--timeline", "clocks of several machines do not agree");
  refuse(o.faults.resume && (o.tensor > 1 || o.pipeline > 1),
         "--resume with --tensor or --pipeline",
         "every rank would have to read the checkpoint, which is where rank 0 is");
}

}  // namespace

void node_options_add(CommandLine& line, NodeOptions& nodes) {
  line.number("--nnodes", nodes.count,
              "machines of the job, on each of which sluice-train is started with the same options "
              "but --node-rank; --nproc is then the ranks of each",
              1, kNodesMax);
  line.number("--node-rank", nodes.node,
              "with --nnodes: which of them this is; node 0 has rank 0 and serves the rendezvous",
              0, kNodesMax - 1);
  line.text("--rendezvous", nodes.rendezvous,
            "with --nnodes: HOST:PORT, an address of node 0 that all reach, and a free port there. "
            "It asks nobody who he is: for trusted networks alone");
  line.text("--address", nodes.address,
            "with --nnodes: the address by which other nodes reach the ranks of this one; default: "
            "the one by which this node reaches the rendezvous");
  line.seconds("--rendezvous-timeout", nodes.wait_s,
               "with --nnodes: how long to wait for all nodes to come", 0.1, 1e6);
}

void node_options_check(const CommandLine& line, TrainOptions& o) {
  NodeOptions& nodes = o.nodes;
  if (!nodes.are_many()) {
    for (const char* option : {"--node-rank", "--rendezvous", "--address", "--rendezvous-timeout"})
      if (line.given(option)) throw Failure(std::string(option) + " is for --nnodes above 1");
    return;
  }
  if (nodes.node >= nodes.count) {
    throw Failure(
        text_format("--node-rank %d of --nnodes %d; they count from 0", nodes.node, nodes.count));
  }
  if (!host_port_parse(nodes.rendezvous)) {
    throw Failure("--nnodes needs --rendezvous HOST:PORT, an address of node 0; \"" +
                  nodes.rendezvous + "\" is none");
  }
  supported_check(o);
  nodes.job = line.values({"--node-rank", "--address", "--rendezvous", "--rendezvous-timeout",
                           "--nproc", "--log", "--quiet", "--data-dir"});
}

}  // namespace sluice::train
