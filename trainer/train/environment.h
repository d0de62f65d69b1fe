// Ranks that somebody else starts: mpirun and srun run the program once for each rank and tell it
// in the environment which one it is. No MPI is needed; only the variables are read.
//
//   Open MPI          OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_SIZE; the job is PMIX_NAMESPACE
//   MPICH, Intel MPI  PMI_RANK, PMI_SIZE, MPI_LOCALNRANKS
//   Slurm's srun      SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NUM_NODES; the job is
//                     SLURM_JOB_ID with SLURM_STEP_ID. A batch script has a SLURM_PROCID as well,
//                     but no SLURM_STEP_ID: there the program starts its ranks itself.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace sluice::train {

struct ExternalStart {
  int rank = 0;
  int rank_count = 1;
  std::string by;   // "mpirun (OMPI_COMM_WORLD_RANK)", for messages
  std::string job;  // the same for all ranks of the job, and no other's; fit for a file name
};

/// A variable's value, or null.
using Environment = std::function<const char*(const char*)>;

/// None where nobody else starts ranks. Throws Failure where the variables are wrong or not all
/// there, or where the ranks are on several machines, which cannot speak to each other.
std::optional<ExternalStart> external_start(const Environment& environment);

}  // namespace sluice::train
