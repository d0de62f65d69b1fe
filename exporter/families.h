// The table of metric families: name, type, labels and help of each, in the order in which they are
// served. The collector fills it, --describe and docs/metrics.md print it. Names are a contract:
// they are never changed, only added.
#pragma once

#include <prometheus/metric_type.h>

#include <span>
#include <string>

namespace sluice::exporter {

enum class Family : std::size_t {
  kUp,
  kBrokerUptime,
  kBrokerRegistrations,
  kBrokerAdmissions,
  kBrokerRefusals,
  kBrokerRefused,
  kBrokerProtocolErrors,
  kBrokerProtocolErrorKinds,
  kBrokerReloads,
  kBrokerJournalFaults,
  kBrokerJournalLost,
  kBrokerSlowTurns,
  kGpuInfo,
  kGpuCapacity,
  kGpuPromised,
  kGpuGuaranteedShare,
  kGpuQuota,
  kGpuHeld,
  kGpuContext,
  kGpuBusy,
  kGpuUtilization,
  kGpuLeasesGranted,
  kGpuLeasesRevoked,
  kGpuOverruns,
  kGpuOverrunSeconds,
  kGpuExclusive,
  kGpuDraining,
  kGpuLost,
  kGpuMemoryUsed,
  kGpuUnmanagedProcesses,
  kGpuUnmanagedMemory,
  kGpuLedgerDrift,
  kGpuXids,
  kBypassUp,
  kBypassSource,
  kUnmanagedProcesses,
  kUnmanagedMemory,
  kUnmanagedFound,
  kUnmanagedStopped,
  kTenants,
  kExclusiveGangs,
  kQueueLength,
  kQueueOldest,
  kAdmissionWaits,
  kTenantMemoryLimit,
  kTenantMemoryGuaranteed,
  kTenantMemoryUsed,
  kTenantMemoryPeak,
  kTenantMemoryMovable,
  kTenantMemorySwapped,
  kTenantMemoryNotMovable,
  kTenantMovedBytes,
  kTenantMoves,
  kTenantMovesFailed,
  kTenantMovingSeconds,
  kTenantWaySeconds,
  kTenantGpuSeconds,
  kTenantLeaseSeconds,
  kTenantGuaranteedShare,
  kTenantShareWeight,
  kTenantAchievedShare,
  kTenantShareError,
  kTenantGateWaits,
  kTenantGateWaitSeconds,
  kTenantTurnWaits,
  kTenantLaunches,
  kTenantGraphLaunches,
  kTenantRefused,
  kTenantRefusals,
  kTenantOverruns,
  kTenantIdle,
  kTenantIdleUnseen,
  kTenantWaiting,
  kTenantProcesses,
  kTenantUnregistered,
  kTenantUnregisteredBytes,
  kTenantRunaway,
  kTenantUnhooked,
  kTenantNotEnforced,
  kTenantState,
  kTenantStays,
  kTrainingSteps,
  kTrainingSamples,
  kTrainingTokens,
  kTrainingExposed,
  kTrainingStraggler,
  kBpfEnabled,
  kBpfInfo,
  kProcessExits,
  kOffCpu,
  kSchedSwitches,
  kNvmlUp,
  kScrapeDuration,
  kScrapeErrors,
  kIdleObserver,
  kIdleUnseenTenants,
  kIdleLost,
  kCount
};

struct FamilyInfo {
  const char* name;
  prometheus::MetricType type;
  const char* labels;  // separated by ", "
  const char* help;
};

std::span<const FamilyInfo, static_cast<std::size_t>(Family::kCount)> families();

/// The table as Markdown: the source of docs/metrics.md.
std::string families_describe();

}  // namespace sluice::exporter
