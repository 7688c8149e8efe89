// SPDX-License-Identifier: Apache-2.0
/// Tickets: numbers of work tiles that CTAs draw from a counter in the workspace, so that none idles while
/// work is left.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/launch.hpp"

namespace fovea::gpu::sm90::dense {

struct Tickets {
  int* drawn = nullptr;               ///< tickets drawn so far; null: CTAs take turns instead
  std::int32_t* sequences = nullptr;  ///< [batch], of a ragged batch, those with most keys first; null: in order
  int section_keys = 0;               ///< keys of a kv head that fill a section
};

inline constexpr int kTicketInts = 4;  // in a workspace, before `sequences`

/// Bytes of a workspace. `sequences`: of a ragged batch, else 0.
constexpr std::size_t ticket_bytes(std::int64_t sequences) { return static_cast<std::size_t>(kTicketInts + sequences) * sizeof(int); }

/// Lists of a ragged batch; null for other batches.
struct SequenceLengths {
  const std::int32_t *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr;
  int batch = 0, seq_q = 0, seq_k = 0;  ///< lengths are bounds
};

/// Clears the counter and sorts the sequences of a ragged batch, before the kernel that draws.
CudaStatus launch_prepare(const Tickets& tickets, const SequenceLengths& lengths, Stream stream);

}  // namespace fovea::gpu::sm90::dense
