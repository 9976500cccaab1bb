// A program of another project, which knows the installed client alone. It asks a server for labels by a call, by an
// asynchronous call and by a stream, and prints what it got, a fact a line. Exits with 1 at the first surprise.
//
//   consumer ADDRESS MODEL SCAN
#include <voxserve/client.h>

#include <algorithm>
#include <cstdio>
#include <future>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

std::vector<uint16_t> Copy(std::span<const uint16_t> labels) { return {labels.begin(), labels.end()}; }

[[noreturn]] void Fail(const std::string& what) {
  std::cerr << what << "\n";
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) Fail("usage: consumer ADDRESS MODEL SCAN");
  const std::string model = argv[2];
  auto client = voxserve::Client::Create(voxserve::ClientOptions(argv[1]).set_timeout(std::chrono::seconds(60)));
  if (!client.ok()) Fail(client.status().ToString());
  auto cloud = voxserve::PointCloud::Read(argv[3]);
  if (!cloud.ok()) Fail(cloud.status().ToString());

  const auto result = client->Infer(voxserve::InferOptions(model), *cloud);
  if (!result.ok()) Fail(result.status().ToString());
  std::map<uint16_t, size_t> counts;
  for (const uint16_t label : result->labels()) ++counts[label];
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto described = client->GetModel(model);
  if (!described.ok()) Fail(described.status().ToString());
  std::cout << "library " << voxserve::LibraryVersion() << "\npoints " << cloud->num_points() << "\nlabels "
            << result->labels().size() << "\nmost " << described->class_name(most->first) << " " << most->second
            << "\n";

  std::promise<std::vector<uint16_t>> asked;
  client->InferAsync(voxserve::InferOptions(model), *cloud, [&](voxserve::Result<voxserve::Segmentation> answer) {
    asked.set_value(answer.ok() ? Copy(answer->labels()) : std::vector<uint16_t>());
  });
  if (asked.get_future().get() != Copy(result->labels())) Fail("the asynchronous call got other labels");

  std::promise<std::vector<uint16_t>> streamed;
  std::promise<voxserve::Status> ended;
  auto stream = client->OpenStream(
      voxserve::StreamOptions(model),
      [&](uint64_t frame_id, voxserve::Result<voxserve::Segmentation> answer) {
        streamed.set_value(frame_id == 7 && answer.ok() ? Copy(answer->labels()) : std::vector<uint16_t>());
      },
      voxserve::StreamEvents().set_on_end([&](voxserve::Status status) { ended.set_value(status); }));
  if (!stream.ok()) Fail(stream.status().ToString());
  if (const voxserve::Status sent = stream->Send(7, *cloud); !sent.ok()) Fail(sent.ToString());
  stream->CloseSends();
  if (streamed.get_future().get() != Copy(result->labels())) Fail("the stream got other labels");
  if (const voxserve::Status status = ended.get_future().get(); !status.ok()) Fail(status.ToString());

  const auto missing = client->Infer(voxserve::InferOptions("no-such-model"), *std::move(cloud));
  std::cout << "missing " << ToString(missing.status().code()) << " " << missing.status().reason() << "\n";
}
