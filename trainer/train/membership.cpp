// See membership.h.
#include "trainer/train/membership.h"

#include <algorithm>
#include <cassert>
#include <cstdio>

namespace sluice::train {

Member member_await(BoardMap& board, Heartbeat& heartbeat, int slot, std::uint64_t epoch,
                    std::uint64_t commit_steps) {
  const Heartbeat::Waiting waiting(heartbeat);
  RankLine& line = board.line(slot);
  BoardMembers& members = board.members();
  line.commit_steps = commit_steps;
  line.ready_for = epoch + 1;
  while (members.epoch <= epoch) sleep_until(now_ns() + kNanosPerMilli);
  Member out{members.epoch, 0, members.rank_count, members.root, members.directory};
  heartbeat.epoch_set(out.epoch);
  while (out.rank < out.rank_count && members.slots[out.rank] != slot) ++out.rank;
  if (out.rank == out.rank_count) throw Failure("this rank is no member of the job any more");
  return out;
}

void members_leave(BoardMap& board, Heartbeat& heartbeat, RankLine& line, int rank_count) {
  const Heartbeat::Waiting waiting(heartbeat);
  line.finished = true;
  const BoardMembers& members = board.members();
  for (int rank = 0; rank < rank_count; ++rank) {
    const int slot = members.epoch == 0 ? rank : members.slots[rank];
    while (!board.line(slot).finished && !heartbeat.is_broken())
      sleep_until(now_ns() + kNanosPerMilli);
  }
}

Membership::Membership(BoardMap& board, int rank_count) : board_(board) {
  for (int slot = 0; slot < rank_count; ++slot) members_.push_back(slot);
}

void Membership::breaks() { board_.members().broken = epoch() + 1; }

void Membership::form(const std::vector<int>& slots, const std::string& directory) {
  BoardMembers& members = board_.members();
  members.rank_count = static_cast<int>(slots.size());
  members.root = 0;
  for (std::size_t rank = 0; rank < slots.size(); ++rank) {
    members.slots[rank] = slots[rank];
    const auto steps_of = [&](int slot) { return board_.line(slot).commit_steps.load(); };
    if (steps_of(slots[rank]) > steps_of(members.slots[members.root]))
      members.root = static_cast<int>(rank);
  }
  assert(directory.size() < sizeof members.directory);
  std::snprintf(members.directory, sizeof members.directory, "%s", directory.c_str());
  members_ = slots;
  members.epoch = epoch() + 1;
}

bool Membership::trains() const {
  return std::all_of(members_.begin(), members_.end(),
                     [&](int slot) { return board_.line(slot).trains_in == epoch() + 1; });
}

}  // namespace sluice::train
