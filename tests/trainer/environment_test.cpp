// Who is which rank by the variables of mpirun, mpiexec and srun, and what is wrong with them.
#include "trainer/train/environment.h"

#include <gtest/gtest.h>

#include <map>

#include "trainer/base/failure.h"

namespace sluice::train {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<ExternalStart> start_of(const Variables& variables) {
  return external_start([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string complaint_of(const Variables& variables) {
  try {
    start_of(variables);
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

TEST(ExternalStart, WithoutVariablesNobodyElseStartsRanks) {
  EXPECT_FALSE(start_of({}));
  // A batch script is one task of its own, whatever its job has asked for.
  EXPECT_FALSE(start_of({{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}));
}

TEST(ExternalStart, EveryStarterSaysWhichRankThisIs) {
  const auto open_mpi = start_of({{"OMPI_COMM_WORLD_RANK", "2"},
                                  {"OMPI_COMM_WORLD_SIZE", "3"},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                                  {"PMIX_NAMESPACE", "prte/one@7"}});
  ASSERT_TRUE(open_mpi);
  EXPECT_EQ(open_mpi->rank, 2);
  EXPECT_EQ(open_mpi->rank_count, 3);
  EXPECT_EQ(open_mpi->job, "prte_one_7");  // becomes the name of a directory
  const auto slurm = start_of({{"SLURM_PROCID", "1"},
                               {"SLURM_STEP_NUM_TASKS", "2"},
                               {"SLURM_STEP_NUM_NODES", "1"},
                               {"SLURM_JOB_ID", "71"},
                               {"SLURM_STEP_ID", "0"}});
  ASSERT_TRUE(slurm);
  EXPECT_EQ(slurm->rank, 1);
  EXPECT_EQ(slurm->rank_count, 2);
  EXPECT_EQ(slurm->job, "71.0");
  const auto mpich = start_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}});
  ASSERT_TRUE(mpich);
  EXPECT_EQ(mpich->rank_count, 4);
  EXPECT_EQ(mpich->job.find('p'), 0u) << "no name given: the parent's process";
  EXPECT_EQ(mpich->job, start_of({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}})->job);
}

TEST(ExternalStart, WrongAndPartialVariablesAreNamed) {
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << text << "\" lacks " << part;
  };
  has(complaint_of({{"OMPI_COMM_WORLD_RANK", "1"}}), "but OMPI_COMM_WORLD_SIZE is not");
  has(complaint_of({{"OMPI_COMM_WORLD_SIZE", "2"}}), "but OMPI_COMM_WORLD_RANK is not");
  has(complaint_of({{"PMI_RANK", "1"}}), "or give --start self");
  has(complaint_of({{"SLURM_PROCID", "1"}, {"SLURM_STEP_ID", "0"}}), "SLURM_STEP_NUM_TASKS is not");
  for (const char* bad : {"", "x", "1x", "-1", " 1", "99999999999"})
    has(complaint_of({{"PMI_RANK", bad}, {"PMI_SIZE", "2"}}), "PMI_RANK is \"");
  has(complaint_of({{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}}), "says rank 2 of 2");
  has(complaint_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "0"}}), "says rank 0 of 0");
  has(complaint_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "65"}}), "1 to 64 of them");
  has(complaint_of({{"OMPI_COMM_WORLD_RANK", "0"},
                    {"OMPI_COMM_WORLD_SIZE", "4"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
      "several machines");
  has(complaint_of({{"SLURM_PROCID", "0"},
                    {"SLURM_STEP_NUM_TASKS", "4"},
                    {"SLURM_STEP_NUM_NODES", "2"},
                    {"SLURM_STEP_ID", "0"}}),
      "several machines");
}

}  // namespace
}  // namespace sluice::train
